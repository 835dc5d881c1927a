"""Records on disk that say of what they are, and whether they are what was written: a bit that flipped is noticed."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from personae.core import wire
from personae.core.wire import Packet, WireError
from personae.files import Bytes

_SEAL = "seal"  # the entry that a file has besides those of its record
_BLANK = b"0" * 64  # what stands in the place of the digest while that is computed
_DIGEST = re.compile(rb'digest\\": \\"([0-9a-f]{64})\\"')  # within the header, which is JSON in JSON


def sealed(packet: Packet, of: Mapping[str, Any]) -> list[Bytes]:
    """A record as bytes, with what it is of; in pieces, which are written before an array changes."""
    seal = {_SEAL: {"of": dict(of), "digest": _BLANK.decode()}}
    header, *arrays = wire.pieces(Packet(packet.arrays, packet.scalars | seal))
    start, end = _place(bytes(header))
    digest = hashlib.sha256(header)
    for array in arrays:
        digest.update(array)
    return [header[:start], digest.hexdigest().encode(), header[end:], *arrays]


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


def _place(content: bytes) -> tuple[int, int]:
    """Where the digest is."""
    size = int.from_bytes(content[:8], "little")
    found = _DIGEST.search(content, 8, 8 + size) if size < len(content) else None
    if found is None:
        raise WireError("it is cut off, or no file of this version")
    return found.span(1)
