"""Faces in the formats of other tools, written byte by byte as their documentation says, without these tools."""

import io
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

MAGIC = struct.pack("<I", 0xCED7230A)


def picture(seed: int, kind: str = "PNG", size: int = 16) -> bytes:
    """A smooth random image, another one for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(stream, kind)
    return stream.getvalue()


def pixels_of(encoded: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


def record(labels: float | Sequence[float], content: bytes = b"", number: int = 0) -> bytes:
    """MXNet's IRHeader: one label in the header itself, or several behind it."""
    if isinstance(labels, Sequence):
        return struct.pack("<IfQQ", len(labels), 0.0, number, 0) + struct.pack(f"<{len(labels)}f", *labels) + content
    return struct.pack("<IfQQ", 0, labels, number, 0) + content


def framed(content: bytes) -> bytes:
    """One record in the file: in parts wherever the word that begins records stands at a multiple of four."""
    cuts = [place for place in range(0, len(content) - 3, 4) if content[place : place + 4] == MAGIC]
    bounds = [-4, *cuts, len(content)]
    parts = [content[begin + 4 : end] for begin, end in pairwise(bounds)]
    kinds = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
    return b"".join(
        MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4)
        for kind, part in zip(kinds, parts, strict=True)
    )


def write_records(file: Path, records: Mapping[int, bytes]) -> Path:
    lines, place = [], 0
    with file.open("wb") as stream:
        for key, content in records.items():
            lines.append(f"{key}\t{place}\n")
            place += stream.write(framed(content))
    file.with_suffix(".idx").write_text("".join(lines))
    return file


def insightface(people: Mapping[int, Sequence[bytes]]) -> dict[int, bytes]:
    """Images from 1 on, then a range for each identity, and at last record 0, which says where the ranges are."""
    records: dict[int, bytes] = {}
    ranges = []
    for label, images in people.items():
        ranges.append((len(records) + 1, len(records) + 1 + len(images)))
        for image in images:
            records[len(records) + 1] = record(float(label), image, len(records) + 1)
    first = len(records) + 1
    for span in ranges:
        records[len(records) + 1] = record([float(end) for end in span])
    records[0] = record([float(first), float(first + len(ranges))])
    return records
