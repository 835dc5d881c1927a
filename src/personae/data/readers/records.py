"""InsightFace's sets as MXNet stores them: `NAME.rec` holds one record after the other, `NAME.idx` where each begins.

A record is a header (how many labels, the first of them, two numbers), further labels, and an encoded image. Where an
image happens to hold the word that begins a record, it is written in parts around that word. InsightFace's record 0
has no image: its two labels span the records that give each identity's images as a range. Nothing a file says is
believed before it was held against the file's length.
"""

import mmap
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.images import MAX_BYTES, ImageError
from personae.data.readers.listing import Fetch, Listing
from personae.errors import DataError

SUFFIX, INDEX = ".rec", ".idx"
_MAGIC = struct.pack("<I", 0xCED7230A)
_FRAME = struct.Struct("<4sI")
_HEADER = struct.Struct("<IfQQ")
_LENGTH = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAX_INDEX = 1_000_000_000
_MAX_PARTS = 10_000

Places = NDArray[np.int64]


def is_records(path: Path) -> bool:
    """A record file, or a folder with one."""
    return _file(path) is not None


def read_records(path: Path) -> Listing:
    file = _file(path)
    assert file is not None
    keys, offsets = _index(file)
    with _mapped(file) as content:
        images, labels = _labels(file, content, keys, offsets)
    names, places = tuple(map(str, keys[images].tolist())), offsets[images]
    status = [each.stat() for each in (file, file.with_suffix(INDEX))]

    @contextmanager
    def opened() -> Iterator[Fetch]:
        with _mapped(file) as content:

            def fetch(position: int) -> bytes:
                found, encoded = _unpack(_record(content, int(places[position])))
                if (own := _identity(found)) != labels[position]:
                    raise ImageError(f"its record is labelled {own}, and the range it lies in {labels[position]}")
                return encoded

            yield fetch

    return Listing(
        source=path,
        paths=names,
        labels=labels,
        stamp=repr([(each.st_size, each.st_mtime_ns) for each in status]),
        opened=opened,
    )


def _file(path: Path) -> Path | None:
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}"))
        if len(found) > 1 and (path / f"train{SUFFIX}") in found:
            found = [path / f"train{SUFFIX}"]
        if len(found) > 1:
            raise DataError(f"{path}: has {', '.join(file.name for file in found)}; give one of them")
        return found[0] if found else None
    if path.suffix.lower() == SUFFIX:
        return path
    with path.open("rb") as stream:
        return path if stream.read(len(_MAGIC)) == _MAGIC else None


@contextmanager
def _mapped(file: Path) -> Iterator[mmap.mmap]:
    with file.open("rb") as stream:
        if not file.stat().st_size:
            raise DataError(f"{file}: an empty file; download it again")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def _index(file: Path) -> tuple[Places, Places]:
    """Lines `key offset`; sorted by key."""
    index = file.with_suffix(INDEX)
    if not index.is_file():
        raise DataError(f"{file}: {index.name} is not beside it, which says where its records begin; bring it there")
    if index.stat().st_size > _MAX_INDEX:
        raise DataError(f"{index}: more than {_MAX_INDEX:,} bytes; such an index is not read")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an end that cannot be read is a mere warning to NumPy
        try:
            numbers = np.fromstring(index.read_bytes(), dtype=np.int64, sep=" ")
        except (ValueError, DeprecationWarning) as error:
            raise DataError(f"{index}: not lines of `key offset`; make it again from {file.name}") from error
    if not len(numbers) or len(numbers) % 2:
        raise DataError(f"{index}: {len(numbers)} numbers, not lines of `key offset`; make it again from {file.name}")
    keys, offsets = numbers.reshape(-1, 2).T
    order = np.argsort(keys, kind="stable")
    keys, offsets = keys[order], offsets[order]
    if (twice := np.flatnonzero(np.diff(keys) == 0)).size:
        raise DataError(f"{index}: key {keys[twice[0]]} is in it twice; make it again from {file.name}")
    return keys, offsets


def _labels(file: Path, content: mmap.mmap, keys: Places, offsets: Places) -> tuple[Places, tuple[str, ...]]:
    """Which records, by place in the index, are images, and the label of each."""

    def header(place: int) -> tuple[NDArray[np.float32], bool]:
        try:
            labels, encoded = _unpack(_record(content, int(offsets[place])))
        except ImageError as why:
            raise DataError(f"{file}: record {keys[place]} cannot be read ({why}); download it again") from why
        return labels, bool(encoded)

    def name(place: int) -> str:
        try:
            return _identity(header(place)[0])
        except ImageError as why:
            raise DataError(f"{file}: record {keys[place]} cannot be used ({why})") from why

    spans, has_image = header(0)
    if has_image or keys[0] != 0:
        return np.arange(len(keys)), tuple(name(place) for place in range(len(keys)))
    first, stop = _span(spans, keys, f"{file}: record 0", 1, int(keys[-1]) + 1)
    images = np.arange(1, np.searchsorted(keys, first))
    of_image: list[str | None] = [None] * (len(images) + 1)
    for place in range(int(np.searchsorted(keys, first)), int(np.searchsorted(keys, stop))):
        where = f"{file}: record {keys[place]}"
        begin, end = (int(np.searchsorted(keys, key)) for key in _span(header(place)[0], keys, where, 1, first))
        if any(of_image[begin:end]):
            raise DataError(f"{where}: its range has images of another identity; download the file again")
        of_image[begin:end] = [name(begin)] * (end - begin) if begin < end else []
    if not len(images):
        raise DataError(f"{file}: record 0 leaves no images; download it again")
    return images, tuple(of_image[place] or name(place) for place in images.tolist())


def _span(labels: NDArray[np.float32], keys: Places, where: str, least: int, most: int) -> tuple[int, int]:
    """Two whole numbers, the first not larger, within bounds."""
    if len(labels) >= 2 and np.isfinite(labels[:2]).all() and least <= labels[0] <= labels[1] <= most:
        return int(labels[0]), int(labels[1])
    said = ", ".join(f"{label:g}" for label in labels[:4].tolist())
    raise DataError(f"{where}: gives the range ({said}) of records, and there are {len(keys)}; download the file again")


def _record(content: mmap.mmap, offset: int) -> bytes:
    """The record that begins there, put together where it was written in parts."""
    parts: list[bytes] = []
    total, follows = 0, frozenset({_WHOLE, _FIRST})
    while True:
        if not 0 <= offset <= len(content) - _FRAME.size:
            raise ImageError("its record begins outside of the file")
        magic, word = _FRAME.unpack_from(content, offset)
        kind, length = word >> 29, word & _LENGTH
        if magic != _MAGIC or kind not in follows:
            raise ImageError("no record begins where it should")
        begin, total = offset + _FRAME.size, total + length + len(_MAGIC)
        if begin + length > len(content):
            raise ImageError("its record is longer than the file")
        if total > MAX_BYTES or len(parts) == _MAX_PARTS:
            raise ImageError(f"a record of more than {MAX_BYTES:,} bytes or {_MAX_PARTS:,} parts")
        parts.append(content[begin : begin + length])
        if kind in (_WHOLE, _LAST):
            return _MAGIC.join(parts)
        offset, follows = begin + length + -length % 4, frozenset({_MIDDLE, _LAST})


def _unpack(record: bytes) -> tuple[NDArray[np.float32], bytes]:
    """The labels, and the encoded image."""
    if len(record) < _HEADER.size:
        raise ImageError("its record is too short for a header")
    count, label, _, _ = _HEADER.unpack_from(record)
    start = _HEADER.size + 4 * count
    if start > len(record):
        raise ImageError(f"its record declares {count} labels and is too short for them")
    labels = np.frombuffer(record, "<f4", count, _HEADER.size) if count else np.array([label], dtype=np.float32)
    return labels, record[start:]


def _identity(labels: NDArray[np.float32]) -> str:
    """The first label; further ones say other things of an image."""
    label = float(labels[0])
    if not label.is_integer():
        raise ImageError(f"its label {label:g} is not a whole number")
    return str(int(label))
