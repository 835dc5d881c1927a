"""Where a run stands, on disk after every round: whole or not at all."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import ServerState
from personae.core.stage import Recipe, Stage
from personae.errors import ConfigError, DataError
from personae.files import replacing, resumable, write_bytes
from personae.progress import Notify, unheard
from personae.runtime.seal import sealed, unsealed

LATEST = "latest.safetensors"
BEFORE = "before.safetensors"  # the one before


@dataclass(frozen=True)
class Position:
    """A completed round, how long the records of the run were then with checksums, and its mean figures."""

    stage: str
    round: int
    journal: dict[str, int]
    figures: dict[str, float]
    excluded: tuple[str, ...] = ()  # clients that were out of the run then


@dataclass(frozen=True)
class Checkpoints:
    """`latest` after every round, with the one `before` it; `finished/<stage>` after the last round of each stage.

    With `every`, also `rounds/<stage>/<round>` after every so many rounds.
    """

    folder: Path
    experiment: str  # a digest of everything that determines the result
    recipe: Recipe
    layout: Layout
    notify: Notify = unheard
    every: int = 0

    def save(
        self,
        stage: Stage,
        round_: int,
        state: ServerState,
        journal: dict[str, int],
        figures: Mapping[str, float],
        excluded: Collection[str] = (),
        final: bool | None = None,
    ) -> None:
        """After a round; `final` if the stage ends with it, by default as its rounds are counted."""
        place = {"experiment": self.experiment, "stage": stage.name, "round": round_}
        stand = {"journal": journal, "figures": dict(figures), "excluded": sorted(excluded)}
        content = sealed(wire.encode(state), place | stand)
        with resumable(self._latest):
            if round_ == stage.rounds if final is None else final:
                write_bytes(self._finished(stage.name), *content, private=True)
            elif self.every and round_ % self.every == 0:
                write_bytes(self._kept(stage.name, round_), *content, private=True)
            if self._latest.exists():
                with replacing(self._before, durable=False) as temporary:
                    try:
                        temporary.hardlink_to(self._latest)
                    except OSError:  # a disk without links
                        shutil.copy(self._latest, temporary)
            write_bytes(self._latest, *content, private=True)

    def latest(self) -> tuple[Position, ServerState] | None:
        """The last completed round and the state after it; None if no round was ever completed.

        Where that is damaged, the one before it: clients keep what a round started from until the next one is complete.
        """
        if not self._latest.exists():
            return None
        try:
            return self._load(self._latest)
        except DataError as error:
            if not self._before.exists():
                raise
            found = self._load(self._before)
            self._before.replace(self._latest)  # what is damaged must not take the place of what is whole
            self.notify(f"{error}; the run goes on from the round before, {found[0].stage} {found[0].round}")
            return found

    def finished(self, stage: str) -> ServerState:
        position, state = self._load(self._finished(stage))
        if position.stage != stage:
            raise DataError(f"{self._finished(stage)}: this is the end of {position.stage}; restore it from a copy")
        return state

    def after(self, stage: str, round_: int) -> tuple[Position, ServerState] | None:
        """Where the run stood after this round of the stage, if that was kept."""
        if self._kept(stage, round_).exists():
            return self._load(self._kept(stage, round_))
        found = self._load(self._finished(stage)) if self._finished(stage).exists() else None
        return found if found is not None and found[0].round == round_ else None

    def last(self, stage: str) -> int:
        """The round with which the stage ended; 0 if it has not."""
        return self._load(self._finished(stage))[0].round if self._finished(stage).exists() else 0

    def kept(self, stage: str) -> tuple[int, ...]:
        """The rounds after which states were kept, besides the last one."""
        return tuple(sorted(int(path.stem) for path in (self.folder / "rounds" / stage).glob("*.safetensors")))

    def inherit(self, folder: Path, stage: Stage) -> None:
        """Take over the end of a stage from the checkpoints of another run, as if it had been reached here."""
        _, state = self._load(folder / "finished" / f"{stage.name}.safetensors", own=False)
        self.save(stage, stage.rounds, state, {}, {})

    def take_over(self, other: "Checkpoints") -> Position:
        """All states of another run, as if its rounds had been completed here; gives where it stood."""
        found = other.latest()
        if found is None:
            raise DataError(f"{other.folder}: no round was completed here; begin that run again")
        # With the latest one this run has begun, so it comes last.
        for path in sorted(other.folder.rglob("*.safetensors"), key=lambda path: path == other._latest):
            other._load(path)  # whole, and of that run
            packet, where = unsealed(path.read_bytes())
            content = sealed(packet, where | {"experiment": self.experiment})
            write_bytes(self.folder / path.relative_to(other.folder), *content, private=True)
        return found[0]

    @property
    def _latest(self) -> Path:
        return self.folder / LATEST

    @property
    def _before(self) -> Path:
        return self.folder / BEFORE

    def _kept(self, stage: str, round_: int) -> Path:
        return self.folder / "rounds" / stage / f"{round_:06d}.safetensors"

    def _finished(self, stage: str) -> Path:
        return self.folder / "finished" / f"{stage}.safetensors"

    def _load(self, path: Path, *, own: bool = True) -> tuple[Position, ServerState]:
        try:
            packet, where = unsealed(path.read_bytes())
            out = tuple(where["excluded"])
            position = Position(where["stage"], where["round"], where["journal"], where["figures"], out)
        except (wire.WireError, KeyError, TypeError, OSError) as error:
            raise DataError(f"{path}: this checkpoint cannot be read ({error}); restore it from a copy") from error
        if own and where["experiment"] != self.experiment:
            raise ConfigError(
                f"{path}: this checkpoint is of another experiment; resume with its configuration, data and --without, "
                "or choose another folder"
            )
        kinds = {stage.name: stage.algorithm.types.state for stage in self.recipe}
        if position.stage not in kinds:
            raise DataError(f"{path}: this checkpoint is of a stage that is not in the recipe; restore it from a copy")
        kind = kinds[position.stage]
        try:
            state = wire.decode(kind, packet, self.layout)
        except wire.WireError as error:
            raise DataError(f"{path}: this checkpoint is damaged ({error}); restore it from a copy") from error
        return position, state
