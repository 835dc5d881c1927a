"""A payload kind of others, one class outside the package, is known to wire, firewall, disclosure, report and card."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from personae import RunResult, load_experiment, run_experiment
from personae.core import wire
from personae.core.backbone import Backbone
from personae.core.message import Message
from personae.core.payload import ClassEmbeddings, Count, NetworkVector, Payload, Scalars
from personae.experiment.execution import Execution
from personae.experiment.forecast import forecast
from personae.experiment.materials import Materials
from personae.privacy.disclosure import markdown, warning
from personae.recognition.export import export_model
from personae.runtime.firewall import Firewall, measured
from voiceprint import Listening, Up, Voiceprints

EXPERIMENT = """
name = "voices"
network = { height = 32, width = 32, embedding = 8 }
partition = { clients = 3 }
evaluation = { folds = 2, pairs_per_fold = 10 }
[data]
private = { identities = 9, images = 6 }
heldout = { first = 9, identities = 8, images = 4 }
[[stages]]
name = "federate"
algorithm = { name = "voiceprint:Listening", training = { epochs = 1, lr = 0.01 } }
"""


@pytest.fixture(scope="module")
def experiment_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voices") / "voices.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="module")
def run(experiment_file: Path, faces_cache: Path) -> RunResult:
    return run_experiment(load_experiment(experiment_file), experiment_file.with_name("run"), cache=faces_cache)


@pytest.fixture
def up(backbone: Backbone) -> Up:
    voices = Voiceprints(torch.tensor([3.0, 4.0], dtype=torch.float16))
    return Up(model=backbone.state(), samples=Count(5), training=Scalars({"loss": 1.0}), voices=voices)


def test_it_crosses_the_wire(up: Up, backbone: Backbone) -> None:
    content = wire.to_bytes(wire.encode(up))
    again = wire.decode(Up, wire.from_bytes(content), backbone.layout)
    assert torch.equal(again.voices.pitches, up.voices.pitches)
    assert wire.payload_bytes(up)["Voiceprints"] == 4


def test_the_firewall_asks_it_what_is_wrong(up: Up, backbone: Backbone) -> None:
    firewall = Firewall()
    assert firewall.problem(up, backbone) is None
    loud = replace(up, voices=Voiceprints(torch.tensor([torch.inf], dtype=torch.float16)))
    assert firewall.problem(loud, backbone) == "Voiceprints holds values that are not finite"
    mute = replace(up, voices=Voiceprints(torch.empty(0, dtype=torch.float16)))
    assert firewall.problem(mute, backbone) == "its voices are mute"
    assert Firewall(enabled=False).problem(mute, backbone) == "its voices are mute"

    @dataclass(frozen=True, kw_only=True)
    class Both(Message):
        voices: Voiceprints
        class_embeddings: ClassEmbeddings

    both = Both(voices=up.voices, class_embeddings=ClassEmbeddings(torch.ones(3, backbone.width)))
    assert firewall.problem(both, backbone) == (
        "it does not speak of the same number of identities everywhere: 2 in Voiceprints and 3 in ClassEmbeddings"
    )


def test_the_firewall_compares_what_it_measures(up: Up) -> None:
    usual = measured(up, up.model)
    assert usual["pitch"] == 4.0
    shrill = measured(replace(up, voices=Voiceprints(torch.tensor([100.0], dtype=torch.float16))), up.model)
    found = Firewall().outliers({"ann": usual, "bob": usual, "eve": shrill})
    assert found == {"eve": "its pitch is 25.0 times the round's median"}


def test_disclosure_tells_it() -> None:
    page = markdown([Listening])
    assert "| listening | up | voices | Voiceprints |" in page
    assert "| Voiceprints | how every single person sounds |" in page
    assert warning(Listening) == ("listening sends Voiceprints: a biometric template of each person leaves the client")


def test_its_size_is_known_before_it_exists(experiment_file: Path, faces_cache: Path, run: RunResult) -> None:
    (stage,) = forecast(Materials(load_experiment(experiment_file), Execution(cache=faces_cache))).stages
    ledger = [json.loads(line) for line in (run.folder / "ledger.jsonl").read_text().splitlines()]
    sent = [entry for entry in ledger if entry["direction"] == "up" and entry["round"] == 1]
    assert {entry["bytes"] for entry in sent if entry["payload"] == "Voiceprints"} == {2 * 3}
    training = sum(entry["bytes"] for entry in sent if entry["payload"] in ("ModelState", "Count", "Voiceprints"))
    assert stage.bytes_up == training + 3 * 8  # and a loss of each client
    assert "Voiceprints" in stage.leaves


def test_the_report_tells_it_even_where_its_class_is_not_there(run: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.core.payload.known_kinds", dict)
    page = RunResult(run.folder)._repr_html_()
    report = run.report.read_text()
    for needed in ("how every single person sounds", "(Voiceprints) left the clients"):
        assert needed in report
    assert "Voiceprints" in page


def test_the_card_tells_it(run: RunResult, tmp_path: Path) -> None:
    export_model(run.folder, tmp_path / "model.safetensors")
    page = (tmp_path / "model.card.md").read_text()
    assert "| federate | Voiceprints | 3 | 18 | how every single person sounds |" in page
    assert "listening sends Voiceprints" in page


@pytest.mark.parametrize("kind", [Payload, NetworkVector, torch.Tensor, dict[str, Voiceprints]])
def test_what_is_no_kind_of_payload_is_still_refused(kind: object) -> None:
    with pytest.raises(TypeError, match=r"Odd\.field: .* may not cross: a message holds payloads only"):
        type("Odd", (Message,), {"__annotations__": {"field": kind}})
