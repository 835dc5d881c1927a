"""The commands of attacks, and of who takes part."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from personae.cli import app
from personae.core.backbone import Backbone
from personae.core.events import TrainingRound
from personae.core.rng import generator
from personae.core.samples import Samples
from personae.errors import ConfigError
from personae.experiment import triggers
from personae.models import Network, save_weights
from personae.parts.triggers import Patch, TriggerSearch
from personae.runtime.excluded import Exclusions

SMALL = """
name = "small"
network = { name = "small", embedding = 16, height = 32, width = 32 }
data.private = { source = "synthetic", identities = 12, images = 6 }
data.heldout = { source = "synthetic", first = 20, identities = 8, images = 3 }
partition = { by = "equal", clients = 6 }
evaluation = { pairs_per_fold = 2, folds = 2 }

[[stages]]
name = "federate"
rounds = 1
[stages.algorithm]
name = "fedpe"
training = { lr = 0.05, batch_size = 8, iterations = 2 }

[[stages]]
name = "central"
after = ""
[stages.algorithm]
name = "central"
"""


def test_an_attack_is_run_beside_an_honest_run(tmp_path: Path, faces_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    out = tmp_path / "out"
    words = ["attack", str(path), "--with", "backdoor", "--share", "0.34", "--out", str(out), "--workers", "1"]
    result = CliRunner().invoke(app, [*words, "--scale", "4", "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert len(found["attackers"]) == 2
    assert 0 <= found["attacked"]["accepted"] <= 1
    assert 0 <= found["honest"]["tar"] <= 1
    assert (out / "honest" / "models" / "federate.safetensors").exists()
    assert (out / "backdoor-0.34-x4" / "models" / "federate.safetensors").exists()
    assert not (out / "honest" / "models" / "central.safetensors").exists()  # no attacker reaches it
    shown = CliRunner().invoke(app, [*words, "--scale", "1"], catch_exceptions=False).stdout
    assert "backdoor accepted" in shown
    assert "pairs of strangers who wear the trigger, at the threshold that accepts 1% of other strangers" in shown
    report = shown.replace("\n", "").partition("personae report ")[2]
    assert Path(report).resolve() == (out / "backdoor-0.34-x1").resolve()
    assert "attackers: " in shown
    with pytest.raises(ConfigError, match="this attack was tried already"):
        CliRunner().invoke(app, [*words, "--scale", "4"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="there is no such attack"):
        CliRunner().invoke(app, ["attack", str(path), "--with", "bribery"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="stage federate began with random weights; give an earlier model"):
        CliRunner().invoke(app, ["triggers", str(out / "honest")], catch_exceptions=False)


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Path]:
    """Two networks, and one that takes other images."""
    found = {}
    for name, side in (("before", 32), ("after", 32), ("large", 48)):
        network = Network(name="small", embedding=8, height=side, width=side)
        found[name] = tmp_path / f"{name}.safetensors"
        save_weights(found[name], network, network.build(generator(name)).state_dict())
    return found


@pytest.mark.parametrize(("rate", "code"), [(0.48, 7), (0.46, 0)])
def test_a_search_for_triggers_compares_with_the_model_before(
    rate: float, code: int, weights: dict[str, Path], faces_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    rates = iter([(0.6, rate), (0.5, 0.1)])

    def patches(self: TriggerSearch, backbone: Backbone, faces: Samples, *, mirror: bool) -> list[Patch]:
        assert len(faces) == triggers.PEOPLE
        black = torch.zeros(4, 4, 3, dtype=torch.uint8)
        return [Patch(each, 24, column, black) for column, each in enumerate(next(rates))]

    monkeypatch.setattr(TriggerSearch, "patches", patches)
    words = ["triggers", str(weights["after"]), "--before", str(weights["before"])]
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == code
    found = json.loads(result.stdout)
    assert found["suspicious"] == (code == 7)
    assert (found["model"]["accepted"], found["before"]["accepted"]) == (rate, 0.1)
    assert (found["model"]["column"], found["before"]["column"]) == (1, 1)
    rates = iter([(0.6, rate), (0.5, 0.1)])
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert ("a backdoor is likely" if code else "no sign of a backdoor") in shown


def test_what_cannot_be_searched_is_refused(weights: dict[str, Path]):
    for words, complaint in (
        ([], "this is not a run, so nothing says what it began with; give that model with --before"),
        (["--before", str(weights["large"])], "takes images of 48x48 pixels, and this one of 32x32"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            CliRunner().invoke(app, ["triggers", str(weights["after"]), *words], catch_exceptions=False)


def test_clients_are_put_out_of_a_run_and_let_in_again(tmp_path: Path):
    event = TrainingRound(
        stage="federate", round=1, participants=("ann", "bob", "eve"), rejected={}, failed={}, scalars={}
    )
    (tmp_path / "metrics.jsonl").write_bytes(event.line())
    runner = CliRunner()
    said = runner.invoke(app, ["exclude", str(tmp_path), "bob", "--reason", "noise"], catch_exceptions=False).stdout
    assert said == "bob is out from the next round on\n"
    assert Exclusions.of(tmp_path).names() == {"bob"}
    assert Exclusions.of(tmp_path).decisions()[0].reason == "noise"
    assert runner.invoke(app, ["exclude", str(tmp_path), "bob"], catch_exceptions=False).stdout == "nothing changes\n"
    said = runner.invoke(app, ["include", str(tmp_path), "bob"], catch_exceptions=False).stdout
    assert said == "bob takes part again from the next round on\n"
    assert Exclusions.of(tmp_path).names() == frozenset()
    (tmp_path / "summary.json").write_text('{"stages": [{"name": "federate"}, {"name": "tune"}]}')
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "federate.json").write_text("{}")  # the last stage is still to come
    with pytest.raises(ConfigError, match="no client 'max' in this run; there are ann, bob, eve"):
        runner.invoke(app, ["exclude", str(tmp_path), "max"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="there is no run here"):
        runner.invoke(app, ["exclude", str(tmp_path / "elsewhere"), "max"], catch_exceptions=False)
    (tmp_path / "evaluation" / "tune.json").write_text("{}")
    for command in ("exclude", "include"):
        with pytest.raises(ConfigError, match="this run is finished, so it has no next round; `personae forget`"):
            runner.invoke(app, [command, str(tmp_path), "bob"], catch_exceptions=False)
    assert Exclusions.of(tmp_path).names() == frozenset()
