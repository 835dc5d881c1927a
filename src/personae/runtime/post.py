"""What the process of a server that asks and its gate, to which clients are connected, tell each other.

The one that asks sends a `Turn`: requests, if it has any. The gate gives a `Return`: answers, if any have come. One of
each carries the messages of many clients, because what is slow between the two is the number of messages.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Bytes = bytes | memoryview


@dataclass(frozen=True)
class Asked:
    """One client's request: what is small and its own, and which of the bodies in its turn belongs to it."""

    number: str
    client: str
    head: bytes
    body: int


@dataclass(frozen=True)
class Turn:
    told: bytes = b""  # what clients are told about the run
    asked: Sequence[Asked] = ()
    bodies: Sequence[Bytes] = ()  # what may be large and the same for many clients
    patience: float = 0.0  # seconds after which nobody waits for the answers to these requests
    wait: float = 0.0  # seconds for which there need not be a return, while there is no answer

    def packed(self) -> bytes:
        asked = [{"number": each.number, "client": each.client, "body": each.body} for each in self.asked]
        head = {"asked": asked, "patience": self.patience, "wait": self.wait}
        return packed(head, [self.told, *(each.head for each in self.asked), *self.bodies])

    @classmethod
    def parse(cls, content: bytes) -> "Turn":
        head, (told, *parts) = unpacked(content)
        count = len(head["asked"])
        asked = [Asked(**each, head=bytes(part)) for each, part in zip(head["asked"], parts, strict=False)]
        return cls(bytes(told), asked, parts[count:], head["patience"], head["wait"])


@dataclass(frozen=True)
class Answered:
    """The bytes of a client's answer, or the gate's reason why there are none."""

    number: str
    content: Bytes = b""
    failure: str = ""


@dataclass(frozen=True)
class Return:
    connected: Sequence[str] = ()  # clients
    answered: Sequence[Answered] = ()

    def packed(self) -> bytes:
        answered = [{"number": each.number, "failure": each.failure} for each in self.answered]
        head = {"connected": list(self.connected), "answered": answered}
        return packed(head, [each.content for each in self.answered])

    @classmethod
    def parse(cls, content: bytes) -> "Return":
        head, parts = unpacked(content)
        answered = zip(head["answered"], parts, strict=True)
        return cls(head["connected"], [Answered(**each, content=part) for each, part in answered])


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
