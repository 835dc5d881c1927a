"""A client that is absent changes nothing that it would not change by never answering; rounds can be taken over."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.algorithms import Central, FedAvg, FedFace, FedGC, FedPE, Pretrain
from personae.core import wire
from personae.core.algorithm import AnyAlgorithm
from personae.core.events import PrivacySpent, RoundTime, TrainingRound, Transfer, entries, events
from personae.core.layer import layered
from personae.core.server_step import ServerStep
from personae.core.stage import Stage
from personae.errors import ConfigError
from personae.layers.carry import Carry
from personae.runtime.inprocess import SameProcess
from personae.runtime.past import Past
from personae.runtime.store import PrivateStore, inherit
from personae.runtime.transport import Answer, Failure, Request
from personae.selection.by_loss import HighestLoss
from personae.selection.count import FixedCount
from toys import NAMES, Notebook, Rehearsal, quickly, stage_of


class NeverAnswers(SameProcess):
    """A transport on which one client does no work and is never heard of."""

    def __init__(self, run: Rehearsal, lost: str) -> None:
        super().__init__(run.federation)
        self.lost = lost

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        lost: list[Request] = []

        def others() -> Iterator[Request]:
            for request in requests:
                if request.client.name == self.lost:
                    lost.append(request)
                else:
                    yield request

        yield from super().exchange(others())
        yield from (Failure(request.client, "it never answers") for request in lost)


def kept(run: Rehearsal) -> dict[str, bytes]:
    return {name: content for name, content in run.files().items() if name.startswith("private")}


def state(run: Rehearsal) -> bytes:
    return wire.to_bytes(wire.encode(run.checkpoints.finished(run.recipe[-1].name)))


def without(run: Rehearsal, client: str, past: Past | None = None) -> Rehearsal:
    replace(run.engine(), absent=frozenset({client}), past=past).run()
    return run


CASES: dict[str, tuple[AnyAlgorithm, dict[str, Any]]] = {
    "fedpe": (FedPE(), {}),
    "fedgc": (FedGC(), {}),
    "fedface": (FedFace(), {}),
    "fedavg": (FedAvg(), {}),
    "carry": (layered(quickly(FedPE()), Carry(control_variates=True, momentum="server")), {}),
    "momentum": (FedPE(), {"server": ServerStep(kind="momentum", average="tail", tail=0.5)}),
    "drawn": (FedGC(), {"selection": FixedCount(clients=3)}),
    "drawn by loss": (FedPE(), {"selection": HighestLoss(clients=3, candidates=4)}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_absent_client_is_one_that_never_answers(case: str, tmp_path: Path) -> None:
    algorithm, options = CASES[case]
    stage = stage_of(quickly(algorithm), rounds=3, evaluate_every=2, **options)
    silent = Rehearsal(tmp_path / "silent", (stage,))
    silent.run(NeverAnswers(silent, "bob"))
    gone = without(Rehearsal(tmp_path / "gone", (stage,)), "bob")
    whole = Rehearsal(tmp_path / "whole", (stage,)).run()
    assert state(gone) == state(silent)
    assert kept(gone) == kept(silent)
    assert state(gone) != state(whole)  # it would have made a difference
    figures = [
        [event for event in run.notebook.books["metrics"] if event["event"] != "round"] for run in (gone, silent)
    ]
    assert figures[0] == figures[1]
    assert "bob" not in str(gone.notebook.books)


def test_a_round_in_which_only_the_absent_were_drawn_changes_nothing(tmp_path: Path) -> None:
    stage = stage_of(quickly(FedPE()), rounds=6, selection=FixedCount(clients=1))
    run = without(Rehearsal(tmp_path, (stage,)), "bob")
    asked = [event["participants"] for event in run.notebook.rounds()]
    assert [] in asked, "choose another seed"
    assert ["bob"] not in asked


# ------------------------------------------------------------------------------------------------------ taking over


def past_of(run: Rehearsal, rounds: dict[str, int], **options: Any) -> Past:
    read = {name: [f"{line}\n".encode() for line in map(json.dumps, book)] for name, book in run.notebook.books.items()}
    records = [
        *events(read["metrics"], "metrics"),
        *entries(Transfer, read["ledger"], "ledger"),
        *entries(RoundTime, read["timing"], "timing"),
    ]
    return Past(rounds=rounds, checkpoints=run.checkpoints, records=records, **options)


def books(run: Rehearsal) -> dict[str, Any]:
    return {name: book for name, book in run.notebook.books.items() if name != "timing"}


RECIPE = (
    stage_of(quickly(Pretrain()), evaluate_every=2),
    stage_of(quickly(FedGC()), name="source", clients="source"),
    stage_of(quickly(FedGC()), name="everybody"),
    stage_of(quickly(Central()), after="pretrain"),
)


def test_stages_without_the_client_are_taken_over_and_the_result_is_that_of_beginning_anew(tmp_path: Path) -> None:
    whole = Rehearsal(tmp_path / "whole", RECIPE, source="ann").run()
    anew = without(Rehearsal(tmp_path / "anew", RECIPE, source="ann"), "bob")
    taken = Rehearsal(tmp_path / "taken", RECIPE, source="ann")
    rounds = {"pretrain": 2, "source": 2}
    inherit(tmp_path / "taken" / "private", tmp_path / "whole" / "private", rounds, ["bob"])
    without(taken, "bob", past_of(whole, rounds, forgotten="bob", index=1))
    assert books(taken) == books(anew)
    assert taken.files() == anew.files()
    assert {name: list(model) for name, model in taken.notebook.models.items()}.keys() == anew.notebook.models.keys()
    assert not torch.equal(taken.final("everybody"), whole.final("everybody"))


class Thrifty:
    """An accountant whose budget allows one round of each stage."""

    def affordable(self, stage: Stage) -> int:
        return 1

    def remark(self, stage: Stage) -> str | None:
        return f"{stage.name} ends before its time"

    def require(self, stage: Stage, round_: int, asked: int) -> None:
        pass

    def spent(self, stage: Stage, round_: int) -> tuple[PrivacySpent, ...]:
        said = {"delta": 1e-5, "unit": "client", "against": "readers", "covers": (), "secret": False}
        return (PrivacySpent(stage=stage.name, round=round_, epsilon=2.0, accountant="rdp", **said),)  # type: ignore[arg-type]


def test_a_stage_that_a_budget_has_ended_is_taken_over_with_what_it_spent(tmp_path: Path) -> None:
    def run(name: str, **options: Any) -> Rehearsal:
        found = Rehearsal(tmp_path / name, RECIPE, source="ann")
        replace(found.engine(), accountant=Thrifty(), **options).run()
        return found

    whole, anew = run("whole"), run("anew", absent={"bob"})
    rounds = {"pretrain": 1, "source": 1}
    inherit(tmp_path / "taken" / "private", tmp_path / "whole" / "private", rounds, ["bob"])
    assert [whole.checkpoints.last(stage) for stage in rounds] == [1, 1]
    taken = run("taken", absent={"bob"}, past=past_of(whole, rounds, forgotten="bob", index=1))
    assert books(taken) == books(anew)
    assert taken.files() == anew.files()
    assert any(event["event"] == "privacy" for event in taken.notebook.books["metrics"])


def test_a_stage_whose_end_was_not_kept_cannot_be_taken_over(tmp_path: Path) -> None:
    whole = Rehearsal(tmp_path / "whole", RECIPE[:2], source="ann").run()
    (tmp_path / "whole" / "checkpoints" / "finished" / "pretrain.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"stage pretrain: the state after round 2 was not kept"):
        without(Rehearsal(tmp_path / "taken", RECIPE[:2], source="ann"), "bob", past_of(whole, {"pretrain": 2}))


def test_what_goes_on_after_the_last_round_has_nothing_that_the_client_sent(tmp_path: Path) -> None:
    """As approximate forgetting does: the averages stay, the client's entries are gone."""
    stage = stage_of(quickly(FedGC()), selection=HighestLoss(clients=4, candidates=4))
    whole = Rehearsal(tmp_path / "whole", (stage,)).run()
    longer = Rehearsal(tmp_path / "longer", (replace(stage, rounds=3),))
    past = past_of(whole, {"fedgc": 2}, forgotten="bob", index=1)
    inherit(tmp_path / "longer" / "private", tmp_path / "whole" / "private", {"fedgc": 2}, ["bob"])
    without(longer, "bob", past)
    after: Any = longer.checkpoints.finished("fedgc")
    assert sorted(after.class_embeddings) == [name for name in NAMES if name != "bob"]
    assert after.memory["loss"].isnan().tolist() == [False, True, False, False]
    assert not PrivateStore.of(tmp_path / "longer" / "private", "bob").root.exists()
    assert "bob" not in str(longer.notebook.books)
    first: Any = TrainingRound(**longer.notebook.rounds()[0])
    assert [*first.participants] == [name for name in NAMES if name != "bob"]
    assert isinstance(longer.notebook, Notebook)
    assert [each["round"] for each in longer.notebook.rounds()] == [1, 2, 3]
