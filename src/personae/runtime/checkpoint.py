"""Where a run stands, on disk after every round: whole or not at all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import ServerState
from personae.core.stage import Recipe, Stage
from personae.core.wire import Packet
from personae.errors import ConfigError, DataError
from personae.files import write_bytes

LATEST = "latest.safetensors"
_WHERE = "checkpoint"  # the entry that says of which run and round a file is


@dataclass(frozen=True)
class Position:
    """A completed round, how long the records of the run were then, and the mean figures of that round."""

    stage: str
    round: int
    journal: dict[str, int]
    figures: dict[str, float]


@dataclass(frozen=True)
class Checkpoints:
    """`latest` after every round, `finished/<stage>` after the last round of each stage."""

    folder: Path
    experiment: str  # a digest of everything that determines the result
    recipe: Recipe
    layout: Layout

    def save(
        self, stage: Stage, round_: int, state: ServerState, journal: dict[str, int], figures: Mapping[str, float]
    ) -> None:
        packet = wire.encode(state)
        place = {"experiment": self.experiment, "stage": stage.name, "round": round_}
        packet.scalars[_WHERE] = json.dumps({**place, "journal": journal, "figures": dict(figures)})
        content = wire.to_bytes(packet)
        if round_ == stage.rounds:
            write_bytes(self._finished(stage.name), content)
        write_bytes(self._latest, content)

    def latest(self) -> tuple[Position, ServerState] | None:
        """The last completed round and the state after it; None if no round was ever completed."""
        return self._load(self._latest) if self._latest.exists() else None

    def finished(self, stage: str) -> ServerState:
        return self._load(self._finished(stage))[1]

    def inherit(self, folder: Path, stage: Stage) -> None:
        """Take over the end of a stage from the checkpoints of another run, as if it had been reached here."""
        _, state = self._load(folder / "finished" / f"{stage.name}.safetensors", own=False)
        self.save(stage, stage.rounds, state, {}, {})

    @property
    def _latest(self) -> Path:
        return self.folder / LATEST

    def _finished(self, stage: str) -> Path:
        return self.folder / "finished" / f"{stage}.safetensors"

    def _load(self, path: Path, *, own: bool = True) -> tuple[Position, ServerState]:
        try:
            packet = wire.from_bytes(path.read_bytes())
            where = json.loads(packet.scalars[_WHERE])
        except (wire.WireError, KeyError, ValueError, OSError) as error:
            raise DataError(
                f"{path}: this checkpoint cannot be read ({error}); start anew in another folder"
            ) from error
        if own and where["experiment"] != self.experiment:
            raise ConfigError(
                f"{path}: this checkpoint is of another experiment; resume with its configuration, data and --without, "
                "or choose another --out"
            )
        scalars = {name: value for name, value in packet.scalars.items() if name != _WHERE}
        kind = next(stage for stage in self.recipe if stage.name == where["stage"]).algorithm.types.state
        try:
            state = wire.decode(kind, Packet(packet.arrays, scalars), self.layout)
        except wire.WireError as error:
            raise DataError(f"{path}: this checkpoint is damaged ({error}); start anew elsewhere") from error
        return Position(where["stage"], where["round"], where["journal"], where.get("figures", {})), state
