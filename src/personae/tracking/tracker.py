"""What a tracker is, and what of a run it gets: figures by stage and round, and the name of nobody."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from personae.core.events import Event, GlobalEvaluation, PersonalEvaluation, TrainingRound


class Tracker(ABC):
    """Somewhere that the figures of a run go besides its own folder.

    It is opened with a folder of its own inside the run's and the name of the experiment. A run that is resumed opens
    it again and goes on after the last completed round. What it raises is told once, and the run goes on without it.
    """

    name: ClassVar[str]
    module: ClassVar[str]  # what has to be installed
    extra: ClassVar[str] = "tracking"  # the extra of personae that installs it

    @abstractmethod
    def __init__(self, folder: Path, experiment: str) -> None: ...

    @abstractmethod
    def log(self, figures: Mapping[str, float], round_: int) -> None:
        """Figures of one round; round 0 is the start of a stage."""

    @abstractmethod
    def close(self) -> None: ...


def figures_of(event: Event) -> dict[str, float]:
    """What trackers get of an event: `stage/figure`.

    Clients have names, so their figures are given as the mean over all of them, and who failed as a number. Warnings
    are sentences that may name a client: they stay in the run's own records.
    """
    match event:
        case TrainingRound():
            counts = {"participants": event.participants, "rejected": event.rejected, "failed": event.failed}
            found = {**event.scalars, **{name: float(len(these)) for name, these in counts.items()}}
        case GlobalEvaluation():
            found = dict(event.metrics)
        case PersonalEvaluation():
            names = dict.fromkeys(name for figures in event.clients.values() for name in figures)
            columns = {name: [each[name] for each in event.clients.values() if name in each] for name in names}
            found = {f"clients/{name}": sum(column) / len(column) for name, column in columns.items()}
        case _:
            found = {}
    return {f"{event.stage}/{name}": value for name, value in found.items()}
