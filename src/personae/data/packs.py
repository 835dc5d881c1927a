"""Faces in one file that maps into memory: pixels, labels, names and whatever else is known, in safetensors.

The header is JSON and can execute nothing; the library that reads it holds every offset against the file's length. Text
is kept as the distinct values, in JSON, and a code a row. Each part has its SHA-256 in the header: those of the table
are checked whenever a pack is opened, that of the pixels by `check_pack`.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from personae.data.faces import UNLABELLED, FaceSet, Rows
from personae.data.pixels import Append, Pixels, PixelStore
from personae.data.readers.listing import text_column
from personae.errors import DataError
from personae.files import replacing
from personae.progress import Progress, silent
from personae.words import counted

SUFFIX = ".faces"
_FORMAT, _VERSION = "personae-faces", "1"
_PIXELS, _IDENTITY, _IDENTITIES, _PAIRS = "pixels", "identity", "identities", "pairs.txt"
_PAGE = 4096
_CHUNK = 64 << 20
_DTYPES = {"uint8": "U8", "bool": "BOOL", "int32": "I32", "int64": "I64"}


@dataclass(frozen=True, eq=False)
class Table:
    """What is known of faces besides their pixels."""

    identities: tuple[str, ...]
    identity: Rows
    columns: Mapping[str, NDArray[Any]]
    digest: str
    """Names the content, as that of a store does."""
    unreadable: int = 0
    pairs: str | None = None
    """The list of pairs that came with them, as LFW has it."""


def is_pack(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return f'"{_FORMAT}"'.encode() in file.read(200)
    except OSError:  # whoever reads it as something else says why that fails
        return False


def write_pack(
    file: Path, name: str, height: int, width: int, columns: int, fill: Callable[[Append], Table]
) -> FaceSet:
    """A pack of what `fill` appends and tells at last, with up to so many columns; whole or not there at all."""
    # Safetensors begin with their header, which is known last: it gets room enough, and blanks fill what is left.
    room = -(-(2000 + 600 * (columns + 4)) // _PAGE) * _PAGE
    with replacing(file) as temporary, temporary.open("wb") as stream:
        stream.write(bytes(room))
        writer = _Writer(stream)
        table = fill(writer.append_pixels)
        writer.finish_pixels(height, width)
        writer.add(_IDENTITY, table.identity.astype(np.int64))
        writer.add(_IDENTITIES, _json(list(table.identities)))
        for column, values in table.columns.items():
            writer.add_column(column, values)
        if table.pairs is not None:
            writer.add(_PAIRS, np.frombuffer(table.pairs.encode(), dtype=np.uint8))
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "name": name,
            "digest": table.digest,
            "unreadable": str(table.unreadable),
            "columns": json.dumps(list(table.columns)),
            "sha256": json.dumps(writer.digests),
        }
        header = json.dumps({"__metadata__": metadata, **writer.tensors}).encode()
        assert len(header) <= room - 8, "more columns than announced"
        stream.seek(0)
        stream.write(struct.pack("<Q", room - 8) + header.ljust(room - 8))
    return open_pack(file)


def open_pack(file: Path) -> FaceSet:
    """The faces in a pack, mapped; everything but the pixels is checked against its digest."""
    with _opened(file) as content:
        return _read(file, content)


def pairs_in(file: Path) -> str | None:
    """The list of pairs that came with the faces of a pack."""
    with _opened(file) as content:
        return _tensor(file, content, _PAIRS).tobytes().decode() if _PAIRS in content.keys() else None  # noqa: SIM118


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="numpy") as content:
            yield content
    except SafetensorError as error:
        raise DataError(f"{file}: a damaged pack ({error}); copy or pack it again") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{file}: a pack whose header contradicts itself; copy or pack it again") from error


def check_pack(file: Path, progress: Progress = silent) -> None:
    """Raise DataError where the pixels are not those that were packed."""
    faces = open_pack(file)
    store = faces.pixels
    assert isinstance(store, PixelStore)
    with _opened(file) as content:
        wanted = json.loads(content.metadata()["sha256"])[_PIXELS]
    digest, left = hashlib.sha256(), store.count * store.height * store.width * 3
    with file.open("rb") as stream, progress(f"checking {file.name}", left, "bytes") as advance:
        stream.seek(store.offset)
        while block := stream.read(min(_CHUNK, left)):
            digest.update(block)
            left -= len(block)
            advance(len(block))
    if digest.hexdigest() != wanted:
        raise DataError(f"{file}: its pixels are not those that were packed; copy or pack it again")


def _read(file: Path, content: Any) -> FaceSet:
    metadata = content.metadata() or {}
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{file}: not a pack of faces; make one with `personae data pack`")
    if metadata["version"] != _VERSION:
        raise DataError(f"{file}: a pack of version {metadata['version'][:20]}, and {_VERSION} is read; pack it again")
    tensor = partial(_tensor, file, content)
    pixels = content.get_slice(_PIXELS)
    count, height, width, colours = pixels.get_shape()
    if pixels.get_dtype() != "U8" or colours != 3:
        raise DataError(f"{file}: its pixels are not bytes of three colours; pack it again")
    identity, identities = tensor(_IDENTITY), tuple(map(str, json.loads(tensor(_IDENTITIES).tobytes())))
    columns = {name: _column(name, tensor, content.keys()) for name in json.loads(metadata["columns"])}
    if any(values.shape != (count,) for values in (identity, *columns.values())) or identity.dtype != np.int64:
        raise DataError(f"{file}: has {counted(count, 'image')} and labels for others; pack it again")
    if count and not UNLABELLED <= identity.min() <= identity.max() < len(identities):
        raise DataError(f"{file}: has labels without a name; pack it again")
    store = PixelStore(file, count, height, width, metadata["digest"], offset=_begin(file))
    return FaceSet(
        name=metadata["name"],
        identities=identities,
        identity=identity,
        columns=columns,
        pixels=store,
        stored=np.arange(count),
        unreadable=int(metadata["unreadable"]),
    )


def _tensor(file: Path, content: Any, name: str) -> NDArray[Any]:
    values: NDArray[Any] = content.get_tensor(name)
    if hashlib.sha256(values.tobytes()).hexdigest() != json.loads(content.metadata()["sha256"])[name]:
        raise DataError(f"{file}: {name!r} in it is not what was packed; copy or pack it again")
    return values


def _column(name: str, tensor: Callable[[str], NDArray[Any]], names: Any) -> NDArray[Any]:
    if f"codes of {name}" not in names:
        return tensor(f"column {name}")
    codes = tensor(f"codes of {name}")
    values = list(map(str, json.loads(tensor(f"values of {name}").tobytes())))
    if len(codes) and codes.min() < 0:
        raise IndexError
    return text_column([values[code] for code in codes.tolist()], f"the column {name!r}")


def _begin(file: Path) -> int:
    """Where the pixels begin; safetensors has already held these numbers against the file."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return 8 + int(length) + int(header[_PIXELS]["data_offsets"][0])


class _Writer:
    """Tensors one after the other, and what a header says of them."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.tensors: dict[str, dict[str, Any]] = {}
        self.digests: dict[str, str] = {}
        self._end = 0
        self._count = 0
        self._hash = hashlib.sha256()

    def append_pixels(self, block: Pixels) -> None:
        content = np.ascontiguousarray(block)
        self.stream.write(content.data)
        self._hash.update(content.data)
        self._count += len(block)

    def finish_pixels(self, height: int, width: int) -> None:
        self.digests[_PIXELS] = self._hash.hexdigest()
        self._enter(_PIXELS, "U8", (self._count, height, width, 3), self._count * height * width * 3)

    def add(self, name: str, values: NDArray[Any]) -> None:
        content = values.astype(values.dtype.newbyteorder("<")).tobytes()
        self.stream.write(content)
        self.digests[name] = hashlib.sha256(content).hexdigest()
        self._enter(name, _DTYPES[values.dtype.name], values.shape, len(content))

    def add_column(self, name: str, values: NDArray[Any]) -> None:
        if values.dtype == np.bool_:
            self.add(f"column {name}", values)
            return
        distinct, codes = np.unique(values.astype(str), return_inverse=True)
        self.add(f"values of {name}", _json(distinct.tolist()))
        self.add(f"codes of {name}", codes.astype(np.int32))

    def _enter(self, name: str, kind: str, shape: tuple[int, ...], length: int) -> None:
        offsets = [self._end, self._end + length]
        self.tensors[name] = {"dtype": kind, "shape": list(shape), "data_offsets": offsets}
        self._end += length


def _json(values: list[str]) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(values, ensure_ascii=False).encode(), dtype=np.uint8)
