"""Private state on the client's own disk, in versions by round, so that a round can be taken back."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import LocalState
from personae.errors import Unkept
from personae.files import write_bytes, write_text
from personae.runtime.seal import sealed, unsealed

RUN = ".run"  # beside the clients' folders: which run their states are of

KeptT = TypeVar("KeptT", bound=LocalState)


def mark_run(folder: Path, run: str) -> None:
    """What clients keep in this folder is of this run, and is not taken for that of another."""
    write_text(folder / RUN, run)


def inherit(
    folder: Path, other: Path, rounds: Mapping[str, int] | None = None, forgotten: Collection[str] = ()
) -> None:
    """What clients kept in the folder of another run, as if it had been kept in this one.

    With `rounds`, only what they kept in so many rounds of each of these stages. Of `forgotten` clients, nothing.
    """
    left_out = {PrivateStore.of(other, client).root for client in forgotten}
    for path in sorted(other.rglob("*.safetensors")):
        stage = unquote(path.parent.name)
        if path.parents[1] in left_out or (rounds is not None and int(path.stem) > rounds.get(stage, 0)):
            continue
        packet, of = unsealed(path.read_bytes())
        content = sealed(packet, of | {"run": _run(folder)})
        write_bytes(folder / path.relative_to(other), *content, private=True)


def require_kept(folder: Path, rounds: Mapping[tuple[str, str], int]) -> None:
    """That there is what each client has kept in each stage, as of the round in which it last took part."""
    for (client, stage), round_ in rounds.items():
        path = PrivateStore.of(folder, client).path(stage, round_)
        if not path.exists():
            raise Unkept(f"{path}: this private state is gone; restore it from a copy, or begin the run again")


def _run(folder: Path) -> str:
    mark = folder / RUN
    return mark.read_text(errors="replace") if mark.exists() else ""


@dataclass(frozen=True)
class PrivateStore:
    """What one client keeps: `root/<stage>/<round>.safetensors`.

    A round that was interrupted is run again from the version before it. That version therefore stays until the
    client works in a later round, which can only happen after the interrupted one was completed and checkpointed.
    With `every`, what the client had after every so many rounds stays as well.
    """

    root: Path
    every: int = 0

    @classmethod
    def of(cls, folder: Path, client: str, every: int = 0) -> "PrivateStore":
        return cls(folder / quote(client, safe="").replace(".", "%2E"), every)  # no name leads out of the folder

    def load(self, stage: str, kind: type[KeptT], layout: Layout, *, before: int | None = None) -> KeptT | None:
        """The newest version from a round earlier than `before` (any round without it), or None."""
        versions = [number for number in self._versions(stage) if before is None or number < before]
        if not versions:
            return None
        path = self.path(stage, versions[-1])
        try:
            packet, of = unsealed(path.read_bytes())
            if of != self._place(stage, versions[-1]):
                raise wire.WireError("it is the state of another client, round or run")
            return wire.decode(kind, packet, layout)
        except wire.WireError as error:
            raise Unkept(f"{path}: this private state is damaged ({error}); restore it from a copy") from error
        except OSError as error:
            raise Unkept(f"{path}: this private state cannot be read ({error}); repair that and resume") from error

    def save(self, stage: str, round_: int, state: LocalState) -> None:
        """Keep the state as of this round, and the one version that the round started from; durable once settled."""
        path = self.path(stage, round_)
        try:
            write_bytes(path, *sealed(wire.encode(state), self._place(stage, round_)), durable=False, private=True)
            earlier = [number for number in self._versions(stage) if number < round_]
            for number, following in pairwise(earlier):
                if not (self.every and (following - 1) // self.every * self.every >= number):
                    self.path(stage, number).unlink()
        except OSError as error:
            raise Unkept(f"{path}: this private state cannot be written ({error}); repair that and resume") from error

    def session(self, stage: str, round_: int, kind: type[KeptT], layout: Layout) -> KeptT | None:
        """What was kept from an earlier question of this round; None if that was of another round, or nothing."""
        path = self._session(stage)
        try:
            packet, of = unsealed(path.read_bytes())
            return wire.decode(kind, packet, layout) if of == self._place(stage, round_) else None
        except FileNotFoundError:
            return None
        except (OSError, wire.WireError) as error:
            raise Unkept(f"{path}: what was kept of this round cannot be read ({error}); delete it") from error

    def keep_session(self, stage: str, round_: int, state: LocalState | None) -> None:
        """Keep it for the next question of this round; None ends it."""
        path = self._session(stage)
        try:
            if state is None:
                path.unlink(missing_ok=True)
            else:
                content = sealed(wire.encode(state), self._place(stage, round_))
                write_bytes(path, *content, durable=False, private=True)
        except OSError as error:
            raise Unkept(f"{path}: what is kept of this round cannot be written ({error}); repair that") from error

    def path(self, stage: str, round_: int) -> Path:
        """Where the state as of this round is kept."""
        return self.root / quote(stage, safe="") / f"{round_:06d}.safetensors"

    def _place(self, stage: str, round_: int) -> dict[str, str | int]:
        """What a file is of."""
        return {"run": _run(self.root.parent), "client": self.root.name, "stage": stage, "round": round_}

    def _session(self, stage: str) -> Path:
        return self.root / quote(stage, safe="") / "session.safetensors"

    def _versions(self, stage: str) -> list[int]:
        folder = self.root / quote(stage, safe="")
        return sorted(int(path.stem) for path in folder.glob("[0-9]*.safetensors"))
