"""Figures that clients send: under declared names and finite, or they spoil neither a run nor its records."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from personae.algorithms import FedPE
from personae.algorithms.fedpe import Down, Private, Up
from personae.core.algorithm import Client
from personae.core.layer import layered
from personae.core.message import ClientEvaluation, Message
from personae.core.payload import Scalars
from personae.errors import QuorumLost
from personae.experiment.config import load_experiment
from personae.experiment.evaluator import figures_of
from personae.layers import Clip
from personae.runtime.federation import Federation
from personae.runtime.inprocess import SameProcess
from personae.runtime.transport import Answer, Failure
from toys import NAMES, Rehearsal, Relay, quickly, stage_of


class Liar(Relay):
    """The first client's figures are others than those it had."""

    def __init__(self, federation: Federation, kind: type[Message], figures: dict[str, float]) -> None:
        super().__init__(SameProcess(federation))
        self.kind, self.figures = kind, figures

    def tamper(self, answers: Sequence[Answer | Failure]) -> Iterable[Answer | Failure]:
        for answer in answers:
            if isinstance(answer, Answer) and answer.client.name == NAMES[0] and type(answer.message) is self.kind:
                (field,) = (name for name, kind in answer.message.kinds().items() if kind is Scalars)
                answer = replace(answer, message=replace(answer.message, **{field: Scalars(self.figures)}))  # type: ignore[type-var]
            yield answer


class Declared(Rehearsal):
    """Whose evaluation says how its one figure is called, for either model."""

    @property
    def federation(self) -> Federation:
        return replace(super().federation, figures=("global/*", "personal/*"))


INVENTED = {f"invented {number}": 1.0 for number in range(1000)}


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ({"global/rank1": math.nan}, "its figures are not finite, or too large to be any"),
        ({"global/rank1": -math.inf}, "its figures are not finite, or too large to be any"),
        ({"global/rank1": 1e308}, "its figures are not finite, or too large to be any"),
        (INVENTED, "it sends 1,000 figures under names that are not declared"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_an_evaluation_that_cannot_be_one_is_left_out_and_told(
    tmp_path: Path, figures: dict[str, float], problem: str, enabled: bool
) -> None:
    run = Declared(tmp_path, (stage_of(quickly(FedPE())),))
    run.firewall = replace(run.firewall, enabled=enabled)
    run.run(Liar(run.federation, ClientEvaluation, figures))
    told = [event["clients"] for event in run.notebook.books["metrics"] if event["event"] == "personal"]
    assert told
    assert all(set(clients) == set(NAMES[1:]) for clients in told)
    name = run.recipe[0].name
    assert f"{name}, round 2: the figures of {NAMES[0]} were rejected: {problem}" in run.notices


def test_an_update_with_undeclared_figures_is_rejected(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path, (stage_of(quickly(FedPE())),))
    run.run(Liar(run.federation, Up, {"loss": 1.0, "Ann": 2.0}))
    event = run.notebook.rounds()[0]
    assert event["rejected"] == {NAMES[0]: "it sends 1 figure under names that are not declared"}


@dataclass(frozen=True, kw_only=True)
class Talkative(FedPE):
    """It forgot to declare one of its figures."""

    name: ClassVar[str] = "talkative"

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        up, kept = super().local(down, private, client)
        return replace(up, training=Scalars({**up.training.values, "mood": 1.0})), kept


def test_whoever_forgets_to_declare_a_figure_is_told_its_name_at_the_client(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path, (stage_of(quickly(Talkative())),))
    with pytest.raises(QuorumLost, match="it was about to send something that the algorithm does not declare"):
        run.run()
    assert "the figure 'mood' may not leave: `figures` declares loss" in run.problems


def test_a_layer_declares_the_figures_that_it_adds(tmp_path: Path) -> None:
    algorithm = layered(quickly(FedPE()), Clip(norm=0.1))
    assert algorithm.figures == ("loss", "clipped")
    run = Rehearsal(tmp_path, (stage_of(algorithm),)).run()
    assert "clipped" in run.notebook.rounds()[0]["scalars"]


def test_the_names_of_an_evaluation_follow_from_its_options() -> None:
    names = figures_of(load_experiment("quick", ["evaluation.client_fars=[0.1]"]))
    assert {"global/tar@1e-01", "personal/tar@1e-01", "global/rank1", "global/clusters/count"} <= set(names)
    assert "global/tar@1e-02" not in names
    assert not any("1:1" in name for name in names)
    among = figures_of(load_experiment("quick", ['evaluation.personalized={protocols=["paper"], fpirs=[0.01]}']))
    assert {"personal/1:1 tar@1e-02", "personal/1:N tpir@1e-02 (paper)"} <= set(among)
