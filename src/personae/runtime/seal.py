"""Records on disk that say of what they are, and whether they are what was written: a bit that flipped is noticed."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from personae.core import wire
from personae.core.wire import Packet, WireError

_SEAL = "seal"  # the entry that a file has besides those of its record
_BLANK = b"0" * 64  # what stands in the place of the digest while that is computed
_DIGEST = re.compile(rb'digest\\": \\"([0-9a-f]{64})\\"')  # within the header, which is JSON in JSON


def sealed(packet: Packet, of: Mapping[str, Any]) -> bytes:
    """A record as bytes, with what it is of."""
    seal = {_SEAL: {"of": dict(of), "digest": _BLANK.decode()}}
    content = bytearray(wire.to_bytes(Packet(packet.arrays, packet.scalars | seal)))
    start, end = _place(content)
    content[start:end] = hashlib.sha256(content).hexdigest().encode()
    return bytes(content)


def unsealed(content: bytes) -> tuple[Packet, dict[str, Any]]:
    """What was written, and what it is of; WireError where it is anything else."""
    start, end = _place(content)
    digest = hashlib.sha256(memoryview(content)[:start])
    digest.update(_BLANK)
    digest.update(memoryview(content)[end:])
    if digest.hexdigest().encode() != content[start:end]:
        raise WireError("it is not what was written: its digest is another")
    packet = wire.from_bytes(content)
    of: dict[str, Any] = packet.scalars.pop(_SEAL)["of"]
    return packet, of


def _place(content: bytes | bytearray) -> tuple[int, int]:
    """Where the digest is."""
    size = int.from_bytes(content[:8], "little")
    found = _DIGEST.search(content, 8, 8 + size) if size < len(content) else None
    if found is None:
        raise WireError("it is cut off, or no file of this version")
    return found.span(1)
