"""An audit of a run: what it attacks is what the run did, and what it finds is in the run's folder and report."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from personae import load_experiment, load_model, run_experiment
from personae.cli import app
from personae.core.acceleration import Acceleration
from personae.errors import ConfigError
from personae.experiment.assembly import checkpoints_of
from personae.experiment.auditing import attacks_called, audit_run
from personae.experiment.materials import Materials
from personae.privacy.audit import PRIVACY_ATTACKS, read_audit

EXPERIMENT = """
name = "attacked"
network = { height = 32, width = 32, embedding = 16 }

[data]
private = { source = "synthetic", identities = 8, images = 6 }

[partition]
by = "equal"
clients = 2
train = 0.5
val = 0.0
test = 0.5

[evaluation]
fars = [0.1]

[audit]
rounds = [-1]
attacks = ["templates"]

[[stages]]
name = "plain"
rounds = 2
algorithm = { name = "fedpe", training = { batch_size = 8 } }

[[stages]]
name = "rows"
algorithm = { name = "fedgc", training = { batch_size = 8 } }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "attacked.toml").write_text(EXPERIMENT)
    run_experiment(load_experiment(folder / "attacked.toml"), folder / "run", workers=1)
    return folder / "run"


def test_a_run_that_asks_for_it_is_audited_when_it_ends(run: Path) -> None:
    found = read_audit(run)
    assert found is not None
    plain, rows = found.findings
    assert "no vectors of single people" in plain.reason
    assert (rows.stage, rows.target, rows.trials, rows.chance) == ("rows", "ClassEmbeddings", 8, 1 / 8)
    assert "Attacks that could not be made." in (run / "report.html").read_text()
    assert "audit" not in json.loads((run / "config.json").read_text())


def test_rank_one_is_that_of_the_rows_against_photographs_that_nobody_trained_on(run: Path) -> None:
    experiment = load_experiment(run.parent / "attacked.toml")
    embedder = load_model(run, "rows").embedder
    materials = Materials(experiment)
    state = checkpoints_of(experiment, run, materials.digest(), Acceleration()).finished("rows")
    means, named = {}, 0
    for client in materials.clients.clients:
        test = materials.clients.of(client).test
        for label, name in enumerate(test.identities):
            photos = test.images(torch.nonzero(test.labels == label).flatten())
            means[name] = F.normalize(embedder(photos).mean(0), dim=0)
    for client in materials.clients.clients:
        rows = state.class_embeddings[client].vectors
        for label, name in enumerate(materials.clients.of(client).train.identities):
            named += max(means, key=lambda who: float(rows[label] @ means[who])) == name
    found = read_audit(run)
    assert found is not None
    assert found.findings[1].value == named / 8


def test_the_command_measures_and_writes_the_report(run: Path) -> None:
    ended = CliRunner().invoke(app, ["audit", str(run), "--attack", "templates", "--stage", "rows", "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout[ended.stdout.index("{") :])
    assert [each["stage"] for each in found["findings"]] == ["rows"]
    assert "Who saw what" in (run / "report.html").read_text()


def test_an_attacker_has_as_many_shadow_people_as_are_asked_for(run: Path) -> None:
    """Half of them calibrate the attack, and the others are tested."""
    found = audit_run(run, ["membership"], stages=["rows"], shadows=20).findings
    assert {each.details["others"] for each in found if each.target.startswith("model")} == {10}
    assert "TPR at FPR 9.1%" in {each.figure for each in found}


def test_what_cannot_be_audited_is_said_in_a_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no privacy attack is called 'templets'; did you mean templates"):
        attacks_called(["templets"])
    assert [attack.name for attack in attacks_called(["all"])] == list(PRIVACY_ATTACKS)
    ended = CliRunner().invoke(app, ["audit", str(run), "--stage", "rws"])
    assert isinstance(ended.exception, ConfigError)
    assert "rws is not a finished stage" in str(ended.exception)
    shutil.copytree(run, tmp_path / "purged", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(ConfigError, match="its checkpoints are not there"):
        audit_run(tmp_path / "purged", ["templates"])


DEFENDED = """
name = "defended"
network = { height = 32, width = 32, embedding = 16 }

[data]
private = { source = "synthetic", identities = 48, images = 8 }

[partition]
by = "equal"
clients = 12
train = 0.5
val = 0.0
test = 0.5

[audit]
rounds = [1, -1]

[[stages]]
name = "noised"
rounds = 2
layers = [{ name = "local-noise", norm = 0.3, multiplier = 1.0, randomness = "seed" }]
algorithm = { name = "fedpe", training = { batch_size = 8 } }

[[stages]]
name = "summed"
rounds = 2
after = ""
layers = [{ name = "secret-sum" }]
algorithm = { name = "fedpe", training = { batch_size = 8 } }
"""


@pytest.mark.slow
def test_defended_runs_are_at_most_at_twice_chance(tmp_path: Path) -> None:
    """Noise of clients leaves nothing to find, and of secret sums there is no single update to attack."""
    (tmp_path / "defended.toml").write_text(DEFENDED)
    run_experiment(load_experiment(tmp_path / "defended.toml"), tmp_path / "run", workers=1)
    found = audit_run(tmp_path / "run", ["updates", "hidden-rows", "membership"]).findings
    for attack in ("updates", "hidden-rows", "membership"):
        shares = [
            each
            for each in found
            if (each.attack, each.stage) == (attack, "noised") and each.figure != "AUC" and each.value is not None
        ]
        assert shares
        assert sum(each.value for each in shares) <= 2 * sum(each.chance for each in shares)
    areas = [each for each in found if each.stage == "noised" and each.figure == "AUC"]
    assert len(areas) == 4
    assert not [each.target for each in areas if each.beyond_chance]
    summed = [each for each in found if each.stage == "summed" and each.attack != "membership"]
    assert [each.value for each in summed] == [None, None]
    assert not [each for each in found if each.stage == "summed" and "at this client" in each.target]
