"""What the process of a server that asks and its gate, to which clients are connected, tell each other.

The one that asks sends a `Turn`: requests, if it has any. The gate gives a `Return`: answers, if any have come. One of
each carries the messages of many clients, because what is slow between the two is the number of messages. What may be
large is not in them: the two share a disk, and hand it over as a file (`Post`).
"""

import json
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from personae.files import Bytes, private_folder


class Slip:
    """Bytes in a file that is gone when nobody has it any more."""

    def __init__(self, file: int, path: Path | None = None) -> None:
        self._file, self._path = file, path
        self._end = weakref.finalize(self, _discard, file, path)
        self.size = os.fstat(file).st_size

    def add(self, content: Bytes) -> None:
        while content:
            written = os.pwrite(self._file, content, self.size)
            self.size, content = self.size + written, content[written:]

    def read(self, place: int, size: int) -> bytes:
        return os.pread(self._file, size, place)

    def whole(self) -> bytes:
        return self.read(0, self.size)

    def left(self) -> str:
        """The name under which another process takes it; this one has it no more."""
        assert self._path is not None, "it was taken here"
        self._end.detach()
        os.close(self._file)
        return self._path.name


def _discard(file: int, path: Path | None) -> None:
    os.close(file)
    if path is not None:
        path.unlink(missing_ok=True)


class Post:
    """A folder where processes of one machine leave slips for each other. Who takes one has it alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)

    def slip(self, *content: Bytes) -> Slip:
        file, path = tempfile.mkstemp(dir=self._folder)
        slip = Slip(file, Path(path))
        for piece in content:
            slip.add(piece)
        return slip

    def take(self, name: str) -> Slip:
        path = self._folder / Path(name).name  # nothing of another folder
        slip = Slip(os.open(path, os.O_RDONLY))
        path.unlink()
        return slip

    def clear(self) -> None:
        """Whoever left something here for others is gone, or was killed."""
        for path in self._folder.iterdir():
            path.unlink()


@dataclass(frozen=True)
class Asked:
    """One client's request: what is small and its own, and the slip with the rest, which others may get as well."""

    number: str
    client: str
    head: bytes
    body: str


@dataclass(frozen=True)
class Turn:
    told: bytes = b""  # what clients are told about the run
    asked: Sequence[Asked] = ()
    patience: float = 0.0  # seconds after which nobody waits for the answers to these requests
    wait: float = 0.0  # seconds for which there need not be a return, while there is no answer

    def packed(self) -> bytes:
        asked = [{"number": each.number, "client": each.client, "body": each.body} for each in self.asked]
        head = {"asked": asked, "patience": self.patience, "wait": self.wait}
        return packed(head, [self.told, *(each.head for each in self.asked)])

    @classmethod
    def parse(cls, content: bytes) -> "Turn":
        head, (told, *heads) = unpacked(content)
        asked = [Asked(**each, head=bytes(own)) for each, own in zip(head["asked"], heads, strict=True)]
        return cls(bytes(told), asked, head["patience"], head["wait"])


@dataclass(frozen=True)
class Answered:
    """The slip with a client's answer, or the gate's reason why there is none."""

    number: str
    slip: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Return:
    connected: Sequence[str] = ()  # clients
    answered: Sequence[Answered] = ()

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, content: bytes) -> "Return":
        found = json.loads(content)
        return cls(found["connected"], [Answered(**each) for each in found["answered"]])


def prefix(head: dict[str, Any], sizes: Iterable[int]) -> bytes:
    """What comes before parts of these sizes."""
    text = json.dumps({"head": head, "sizes": list(sizes)}).encode()
    return len(text).to_bytes(4, "little") + text


def packed(head: dict[str, Any], parts: Sequence[Bytes]) -> bytes:
    return b"".join((prefix(head, map(len, parts)), *parts))


def unpacked(content: Bytes) -> tuple[dict[str, Any], list[memoryview]]:
    """ValueError where it was not packed so."""
    try:
        place = 4 + int.from_bytes(content[:4], "little")
        found = json.loads(bytes(content[4:place]))
        head, sizes, view, parts = found["head"], found["sizes"], memoryview(content), []
        for size in sizes:
            parts.append(view[place : place + size])
            place += size
        if min(sizes, default=0) < 0 or place != len(content):
            raise ValueError("its parts have other sizes")
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no head ({error})") from error
    return head, parts
