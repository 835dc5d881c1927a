"""Where a model comes from that is written to a file: what evaluates it, and what its card can say of it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.core.samples import Samples, is_labelled
from personae.errors import DataError
from personae.evaluation.protocols import Benchmark, EvaluationProtocol, GroupBenchmark
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.home import OwnRun, is_home, own_run
from personae.experiment.materials import Materials
from personae.experiment.model import finished_stage
from personae.experiment.personal import faces_of
from personae.experiment.section import SYNTHETIC
from personae.progress import Notify, Progress, unheard
from personae.recognition import card as cards
from personae.report.privacy import plain_privacy
from personae.report.records import Run, is_networked, read_run


@dataclass(frozen=True)
class Origin:
    """A file of weights, of which nothing is known."""

    client: str | None = None
    """Whose personal model it is."""

    def benchmarks(
        self,
        fars: Sequence[float],  # noqa: ARG002 - of those that have benchmarks
        resamples: int,  # noqa: ARG002
        progress: Progress,  # noqa: ARG002
        notify: Notify,  # noqa: ARG002
    ) -> Sequence[EvaluationProtocol]:
        """What it is evaluated on where nobody names anything else."""
        return ()

    def history(self) -> dict[str, Any]:
        """For the card: how it came about."""
        return {"training": None, "home": None, "left_the_clients": [], "privacy": None, "at_the_client": {}}

    @property
    def made_up(self) -> bool:
        """Whether it has seen nothing but synthetic faces."""
        return False


@dataclass(frozen=True)
class OfRun(Origin):
    """A run, in one process or over a network."""

    run: Run = field(kw_only=True)
    experiment: Experiment = field(kw_only=True)
    stage: str = field(kw_only=True)

    def benchmarks(
        self, fars: Sequence[float], resamples: int, progress: Progress, notify: Notify
    ) -> list[EvaluationProtocol]:
        """The run's own; one client's model has nothing to do with the faces of the others."""
        materials = Materials(self.experiment, Execution(progress=progress))
        found: list[Benchmark | GroupBenchmark] = [
            *(materials.heldout_benchmarks() if is_networked(self.run) else materials.benchmarks()),
            *materials.final_benchmarks(),
        ]
        if not found:
            notify("not evaluated: the experiment has no held-out faces; name some with --on")
        chosen = [each for each in found if self.client is None or each.name.partition("/")[0] != "private"]
        return [_at(self.experiment, each, fars, resamples) for each in chosen]

    def history(self) -> dict[str, Any]:
        experiment, records = self.experiment, self.run.records
        clients = {client for name in cards.lineage(experiment, self.stage) for client in records[name].last_clients}
        given = experiment.data.model_dump()
        data = {role: cards.described(source) for role, source in given.items() if source}
        training = cards.training(experiment, self.stage, self.run.environment) | {"data": data}
        if is_networked(self.run):
            data["private"] = "with the clients"
        else:
            training["partition"] = cards.divided(experiment.partition)
        return {
            "training": training | {"clients": len(clients)},
            "home": None,
            "left_the_clients": cards.left_the_clients(self.run, experiment, self.stage),
            "privacy": plain_privacy(self.run, list(cards.lineage(experiment, self.stage))),
            "at_the_client": dict(records[self.stage].last_clients.get(self.client, {})) if self.client else {},
        }

    @property
    def made_up(self) -> bool:
        if self.experiment.weights is not None or is_networked(self.run):
            return False
        sources = (self.experiment.data.public, self.experiment.data.private)
        return all(each.source == SYNTHETIC and each.parts is None for each in sources if each)


@dataclass(frozen=True)
class OfHome(Origin):
    """A run as one of its clients keeps it; nothing of the others is known there, and nothing of them is told."""

    own: OwnRun = field(kw_only=True)
    stage: str = field(kw_only=True)
    data: str | Path | None = field(kw_only=True)

    def benchmarks(
        self, fars: Sequence[float], resamples: int, progress: Progress, notify: Notify
    ) -> list[EvaluationProtocol]:
        """This client's own test faces, where they can be had and tell anything."""
        name = self.own.last_request(self.stage).client.name
        try:
            test = faces_of(self.own, self.data, progress=progress).of(name).test
        except DataError as error:
            notify(f"not evaluated: {error}")
            return []
        if not _tells(test):
            notify("not evaluated: this client has too few test faces; name others with --on")
            return []
        return [_at(self.own.experiment, Benchmark("own", test), fars, resamples)]

    def history(self) -> dict[str, Any]:
        experiment, request = self.own.experiment, self.own.last_request(self.stage)
        data = {"private": "those of this client and of others"}
        if experiment.data.public:
            data["public"] = cards.described(experiment.data.public.model_dump())
        figures = self.own.records.figures(self.stage, request.round)
        return {
            "training": cards.training(experiment, self.stage, self.own.environment) | {"data": data},
            "home": {
                "client": request.client.name,
                "run": self.own.folder.name,
                "stage": self.stage,
                "round": request.round,
                "rounds": self.own.stage(self.stage).rounds,
            },
            "left_the_clients": cards.with_meanings(
                self.own.records.left(cards.lineage(experiment, self.stage)), experiment
            ),
            "privacy": None,  # a client knows neither the other rounds nor what an auditor found
            "at_the_client": {
                name: value for name, value in figures.items() if self.client or not name.startswith("personal/")
            },
        }


def origin_of(
    source: Path,
    stage: str | None,
    client: str | None,
    run: str | None,
    personal: bool,
    data: str | Path | None,
    notify: Notify = unheard,
) -> Origin:
    if is_home(source):
        own = own_run(source, run, notify)
        chosen = own.last_stage(stage)
        whose = own.last_request(chosen).client.name if own.personal(chosen, personal) else None
        return OfHome(whose, own=own, stage=chosen, data=data)
    if not source.is_dir():
        return Origin()
    found = read_run(source)
    experiment = parse_experiment(found.config, str(source / "config.json"))
    return OfRun(client, run=found, experiment=experiment, stage=finished_stage(source, stage))


def _at(
    experiment: Experiment, benchmark: Benchmark | GroupBenchmark, fars: Sequence[float], resamples: int
) -> EvaluationProtocol:
    rates = tuple(sorted({*experiment.evaluation.fars, *fars}, reverse=True))
    return dataclasses.replace(benchmark, fars=rates, resamples=resamples)


def _tells(test: Samples) -> bool:
    """Whether there are pairs of one person, and of two."""
    if not is_labelled(test):
        return False
    counts = test.labels.bincount()
    return bool((counts > 0).sum() > 1 and (counts > 1).any())
