"""Private state on the client's own disk, in versions by round, so that a round can be taken back."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import LocalState
from personae.errors import DataError
from personae.files import write_bytes

KeptT = TypeVar("KeptT", bound=LocalState)


@dataclass(frozen=True)
class PrivateStore:
    """What one client keeps: `root/<stage>/<round>.safetensors`.

    A round that was interrupted is run again from the version before it. That version therefore stays until the
    client works in a later round, which can only happen after the interrupted one was completed and checkpointed.
    """

    root: Path

    @classmethod
    def of(cls, folder: Path, client: str) -> "PrivateStore":
        return cls(folder / quote(client, safe="").replace(".", "%2E"))  # no name leads out of the folder

    def load(self, stage: str, kind: type[KeptT], layout: Layout, *, before: int | None = None) -> KeptT | None:
        """The newest version from a round earlier than `before` (any round without it), or None."""
        versions = [number for number in self._versions(stage) if before is None or number < before]
        if not versions:
            return None
        path = self.path(stage, versions[-1])
        try:
            return wire.decode(kind, wire.from_bytes(path.read_bytes()), layout)
        except wire.WireError as error:
            raise DataError(f"{path}: this private state is damaged ({error}); restore it from a copy") from error

    def save(self, stage: str, round_: int, state: LocalState, *, durable: bool = True) -> None:
        """Keep the state as of this round, and the one version that the round started from."""
        write_bytes(self.path(stage, round_), wire.to_bytes(wire.encode(state)), durable=durable)
        earlier = [number for number in self._versions(stage) if number < round_]
        for number in earlier[:-1]:
            self.path(stage, number).unlink()

    def path(self, stage: str, round_: int) -> Path:
        """Where the state as of this round is kept."""
        return self.root / quote(stage, safe="") / f"{round_:06d}.safetensors"

    def _versions(self, stage: str) -> list[int]:
        folder = self.root / quote(stage, safe="")
        return sorted(int(path.stem) for path in folder.glob("[0-9]*.safetensors"))
