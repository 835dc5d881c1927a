"""How and where work is done: no part of an experiment."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from personae.core.acceleration import Acceleration
from personae.errors import ConfigError
from personae.progress import Notify, Progress, silent, unheard

DeviceName = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a machine gives to a run, and who hears of it."""

    workers: int = 1  # clients at once
    device: str = "cpu"
    acceleration: Acceleration = field(default_factory=Acceleration)
    cache: Path | None = None  # for faces that are decoded or rendered; by default that of this user
    progress: Progress = silent
    notify: Notify = unheard
    trackers: tuple[str, ...] = ()  # where figures go besides the run's folder, by name

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; there must be at least one")
        if self.device.partition(":")[0] not in get_args(DeviceName):
            raise ConfigError(f"device is {self.device!r}; it must be {' or '.join(get_args(DeviceName))}")
