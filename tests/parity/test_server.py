"""The server of a deployment and clients with their own faces, in one process: all but Flower's own programs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lab import kept_states

from fake import DesksOfTheirOwn, as_a_server  # noqa: F401 - the fixture
from personae.deployment.consent import ALL
from personae.deployment.desk import Desk
from personae.deployment.forgetting import forget, plan_forgetting
from personae.deployment.join import Member
from personae.deployment.plan import NOTICES, POST, SERVING, Conditions, Plan, outcome
from personae.deployment.serve import prepare
from personae.deployment.server import main
from personae.errors import ConfigError, DataError, QuorumLost
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal
from personae.experiment.forgetting import model_digests
from personae.experiment.forgotten import Forgotten
from personae.experiment.materials import Materials
from personae.experiment.run import conduct
from personae.files import hold
from personae.privacy.forgotten_log import operator_key, verify
from personae.runtime.post import Post, Turn

EXPERIMENT = {
    "name": "tiny",
    "seed": 4,
    "network": {"name": "small", "embedding": 8, "height": 32, "width": 32},
    "data": {
        "public": {"first": 50, "identities": 4, "images": 4},
        "private": {"identities": 6, "images": 6},
        "heldout": {"first": 90, "identities": 6, "images": 4},
    },
    "partition": {"by": "equal", "clients": 3, "new_clients": 1},
    "evaluation": {"folds": 2, "pairs_per_fold": 4},
    "stages": [
        {
            "name": "pretrain",
            "rounds": 1,
            "algorithm": {"name": "pretrain", "training": {"batch_size": 8, "iterations": 2}},
        },
        {
            "name": "federate",
            "rounds": 3,
            "algorithm": {"name": "fedfr", "training": {"batch_size": 8, "iterations": 2}},
        },
        {
            "name": "adapt",
            "rounds": 1,
            "algorithm": {"name": "adapt", "training": {"batch_size": 8, "iterations": 2}},
        },
    ],
}


class Everyone(DesksOfTheirOwn):
    """The connection breaks after so many requests."""

    def __init__(self, out: Path, desks: dict[str, Desk], breaks_after: int | None = None) -> None:
        super().__init__(Post(out / POST), desks)
        self.left = breaks_after

    def take(self, turn: Turn) -> str:
        if self.left is not None:
            self.left -= len(turn.asked)
            if self.left < 0:
                raise ConnectionError("the SuperLink is gone")
        return super().take(turn)


def clients(folder: Path, dealt: list[Path]) -> dict[str, Desk]:
    """Members with their own faces and homes."""
    desks = {}
    for path in dealt:
        member = Member(
            data=path, home=folder / path.stem, execution=Execution(cache=folder / "cache"), accept=frozenset({ALL})
        )
        desks[path.stem] = Desk(member.host, member.execution.notify, member.problems)
    return desks


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def experiment() -> Experiment:
    return parse_experiment(EXPERIMENT, "test")


def test_a_server_that_breaks_down_at_any_place_ends_in_the_bits_of_one_process(
    experiment: Experiment, tmp_path: Path
) -> None:
    materials = Materials(experiment, Execution(cache=tmp_path / "cache"))
    dealt = deal(materials, tmp_path / "dealt")
    names = [path.stem for path in dealt]
    conduct(experiment, tmp_path / "alone", Execution(cache=tmp_path / "cache"))
    out = tmp_path / "out"
    prepare(experiment, out, names, Conditions(deadline=120, wait=1), resume=False)
    for breaks_after in (1, 4, 6, 9, None):  # in the evaluation, in the first, the second and the third round
        grid = Everyone(out, clients(tmp_path / "homes", dealt), breaks_after)  # all are new, too
        if breaks_after is None:
            main(grid, {"out": str(out)})
            assert outcome(out) == {"code": 0, "error": ""}
        else:
            with pytest.raises(ConnectionError):
                main(grid, {"out": str(out)})
            assert outcome(out) == {"code": 1, "error": "ConnectionError: the SuperLink is gone"}
    assert files(out / "models") == files(tmp_path / "alone" / "models")
    assert (out / "ledger.jsonl").read_bytes() == (tmp_path / "alone" / "ledger.jsonl").read_bytes()
    assert personal(out) == personal(tmp_path / "alone")
    for name in names[:-1]:  # the last one is new: it is evaluated and keeps nothing
        (kept,) = (tmp_path / "homes" / name / "runs").iterdir()
        assert kept.name == Plan.read(out).job.run
        assert kept_states(kept / name) == kept_states(tmp_path / "alone" / "private" / name)


def test_what_a_client_keeps_of_a_round_survives_a_loss_of_power_once_it_has_answered(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, flush = set[Path](), os.fsync

    def noting(descriptor: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        flush(descriptor)

    class Looking(Everyone):
        looked = 0

        def reply(self, client: str, told: bytes, frame: bytes) -> bytes:
            content = super().reply(client, told, frame)
            for kept in (tmp_path / "homes" / client / "runs").rglob("[0-9]*.safetensors"):
                assert {kept, kept.parent} <= flushed
                self.looked += 1
            return content

    monkeypatch.setattr(os, "fsync", noting)
    dealt = deal(Materials(experiment, Execution(cache=tmp_path / "cache")), tmp_path / "dealt")
    out = tmp_path / "out"
    prepare(experiment, out, [path.stem for path in dealt], Conditions(deadline=120, wait=1), resume=False)
    grid = Looking(out, clients(tmp_path / "homes", dealt))
    main(grid, {"out": str(out)})
    assert grid.looked


def personal(out: Path) -> list[dict[str, Any]]:
    """Figures of clients; a server over a network has no faces of theirs to look at itself."""
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert any(event["event"] == "personal" and event["new"] for event in events)
    return [event for event in events if event["event"] != "global"]


def test_who_does_not_come_is_named_and_a_lost_quorum_is_told(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(experiment, out, ["ann", "bob", "eve"], Conditions(wait=0), resume=False)
    with pytest.raises(QuorumLost):
        main(Everyone(out, {}), {"out": str(out)})
    found = outcome(out)
    assert found is not None
    assert found["code"] == 6
    assert "ann: it is not connected" in found["error"]
    notices = (out / NOTICES).read_text().splitlines()
    assert "eve has not connected; the run goes on without it until it does" in notices


def test_too_few_held_out_people_are_told_before_anybody_is_waited_for(tmp_path: Path) -> None:
    few = {**EXPERIMENT, "evaluation": {"folds": 2, "pairs_per_fold": 4_000}}
    out = tmp_path / "out"
    prepare(parse_experiment(few, "few.toml"), out, ["ann", "bob", "eve"], Conditions(wait=3600), resume=False)
    with pytest.raises(DataError, match=r"evaluation\.pairs_per_fold"):
        main(Everyone(out, {}), {"out": str(out)})


def test_a_server_that_has_forgotten_a_client_ends_in_the_bits_of_one_process_without_it(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    execution = Execution(cache=tmp_path / "cache")
    dealt = deal(Materials(experiment, execution), tmp_path / "dealt")
    names, out, conditions = [path.stem for path in dealt], tmp_path / "out", Conditions(deadline=120, wait=1)
    gone, left = names[0], names[1:]
    without = experiment.model_copy(update={"forgotten": (Forgotten(client=gone),)})
    conduct(without, tmp_path / "alone", execution)

    prepare(experiment, out, names, conditions, resume=False)
    main(Everyone(out, clients(tmp_path / "homes", dealt)), {"out": str(out)})
    before = model_digests(out)

    entry = forget(plan_forgetting(out, gone), operator_key())
    assert entry.before == before
    assert verify(out).entries == (entry,)
    assert {path.name for path in out.iterdir()} - {".lock"} == {
        *("config.json", "environment.json", "summary.json", "deployment.json", "forgotten.jsonl", "private"),
        *("metrics.jsonl", "ledger.jsonl", "timing.jsonl"),
    }
    with pytest.raises(ConfigError, match="was forgotten already"):
        plan_forgetting(out, gone)
    prepare(experiment, out, left, conditions, resume=True)  # its key may be gone
    main(Everyone(out, clients(tmp_path / "homes", dealt[1:])), {"out": str(out)})
    assert model_digests(out) == model_digests(tmp_path / "alone")
    assert model_digests(out) != before
    assert gone not in (out / "metrics.jsonl").read_text() + (out / "ledger.jsonl").read_text()


def test_what_a_server_cannot_forget_is_one_clear_line(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(experiment, out, ["ann", "bob"], Conditions(), resume=False)
    with pytest.raises(ConfigError, match=r"no client is called 'anne'; did you mean ann\?"):
        plan_forgetting(out, "anne")
    with pytest.raises(ConfigError, match="over a network there is no --approximate"):
        plan_forgetting(out, "ann", further=3)
    with pytest.raises(ConfigError, match="say which client"):
        plan_forgetting(out, None, "somebody")
    held = hold(out / SERVING, "taken")
    try:
        with pytest.raises(ConfigError, match="a server is at work in this run"):
            forget(plan_forgetting(out, "ann"), Ed25519PrivateKey.generate())
    finally:
        held.release()
    forget(plan_forgetting(out, "ann", "somebody"), Ed25519PrivateKey.generate())  # ann takes part again, from round 1
    assert Plan.read(out).job.parsed().forgotten == ()
    forget(plan_forgetting(out, "ann"), Ed25519PrivateKey.generate())
    with pytest.raises(ConfigError, match="bob is the only client that is left"):
        plan_forgetting(out, "bob")
