"""What claims compare: a number that the runs of one seed give."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from personae.core.events import TrainingRound
from personae.errors import DataError
from personae.experiment.config import Experiment
from personae.report.records import Record, Run, read_events, read_run
from personae.report.table import CLIENTS


@dataclass(frozen=True, eq=False)
class Outcome:
    """The finished run of one variant with one seed."""

    experiment: Experiment
    folder: Path
    cache: Path | None = None

    @cached_property
    def run(self) -> Run:
        return read_run(self.folder)

    @property
    def has_models(self) -> bool:
        """Not where it was taken from records."""
        return (self.folder / "models").is_dir()

    @property
    def device(self) -> str:
        """Where it ran, if there is such a device here: what is computed from it later may as well be done there."""
        wanted = str(self.run.environment.get("device", "cpu"))
        return wanted if torch.cuda.is_available() else "cpu"

    def record(self, stage: str | None = None) -> Record:
        """What happened in a stage that ran here, by default the last."""
        return self.run.records[stage or self.experiment.stages[-1].name]

    def final(self, metric: str, stage: str | None = None) -> float:
        """A metric of the last evaluation: `heldout/accuracy`, `clients/personal/rank1` for a mean over clients."""
        record = self.record(stage)
        if metric.startswith(CLIENTS):
            found = record.clients[max(record.clients)].get(metric.removeprefix(CLIENTS))
            value = None if found is None else found.mean
        else:
            value = record.final_metrics.get(metric)
        if value is None:
            raise DataError(f"{self.folder}: there is no metric {metric}")
        return value

    def curve(self, metric: str, stage: str | None = None) -> dict[int, float]:
        """A metric of the server's benchmarks by round, as often as it was evaluated."""
        return {round_: metrics[metric] for round_, metrics in sorted(self.record(stage).benchmarks.items())}


Outcomes = Mapping[str, Outcome]  # of one seed, by variant


@dataclass(frozen=True)
class Quantity:
    """A figure with a name, the variants whose runs it needs, and how it is read from them.

    `a - b` is a quantity too, and so is an `average`. One that `needs_models` cannot be read from records alone.
    `diverged` is its value where a run that it needs has diverged; without one its claims are not measured there.
    """

    label: str
    variants: tuple[str, ...]
    read: Callable[[Outcomes], float] = field(repr=False)
    unit: str = "%"
    needs_models: bool = False
    diverged: float | None = None

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(
            f"{self.label} − {other.label}",
            (*self.variants, *other.variants),
            lambda outcomes: self.read(outcomes) - other.read(outcomes),
            self.unit,
            self.needs_models or other.needs_models,
        )


def figure(
    label: str,
    variant: str,
    metric: str = "heldout/accuracy",
    stage: str | None = None,
    diverged: float | None = None,
) -> Quantity:
    """A metric at the end of a variant, in percent. Without `stage`, of its last one."""
    return Quantity(label, (variant,), lambda outcomes: 100 * outcomes[variant].final(metric, stage), diverged=diverged)


def training_loss(label: str, variant: str) -> Quantity:
    """The mean loss of the clients in the last round."""

    def read(outcomes: Outcomes) -> float:
        losses = outcomes[variant].record().loss
        return losses[max(losses)]

    return Quantity(label, (variant,), read, "loss")


def said(label: str, variant: str, name: str, unit: str = "%") -> Quantity:
    """What clients said of their training under this name, mean over the rounds of the last stage."""

    def read(outcomes: Outcomes) -> float:
        outcome = outcomes[variant]
        stage = outcome.experiment.stages[-1].name
        rounds = [
            event.scalars[name]
            for event in read_events(outcome.folder)
            if isinstance(event, TrainingRound) and event.stage == stage and name in event.scalars
        ]
        if not rounds:
            raise DataError(f"{outcome.folder}: no client said {name}")
        return statistics.fmean(rounds)

    return Quantity(label, (variant,), read, unit)


def over_rounds(label: str, variant: str, metric: str = "heldout/accuracy") -> Quantity:
    """The mean of a metric over the rounds of the last stage, in percent: the area under its curve."""

    def read(outcomes: Outcomes) -> float:
        curve = outcomes[variant].curve(metric)
        rounds = list(curve)
        values = list(curve.values())
        area = sum((b - a) * (x + y) / 2 for a, b, x, y in zip(rounds, rounds[1:], values, values[1:], strict=False))
        return 100 * area / (rounds[-1] - rounds[0])

    return Quantity(label, (variant,), read)


def constant(value: float, unit: str = "%") -> Quantity:
    """A number that figures are held against."""
    return Quantity(f"{value:g}{unit}" if unit == "%" else f"{value:g} {unit}", (), lambda _: value, unit)


def average(label: str, *parts: Quantity) -> Quantity:
    variants = tuple(dict.fromkeys(variant for part in parts for variant in part.variants))
    return Quantity(
        label,
        variants,
        lambda outcomes: statistics.fmean(part.read(outcomes) for part in parts),
        needs_models=any(part.needs_models for part in parts),
    )
