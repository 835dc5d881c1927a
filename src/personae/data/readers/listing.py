"""What a source of faces declares before any image is decoded, and the rules that every source obeys."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.data.images import MAX_BYTES, ImageError
from personae.errors import DataError

Fetch = Callable[[int], bytes]

_MAX_TEXT = 400_000_000
_MAX_COLUMN = 100_000_000  # bytes of a column of text that may be padding for the most part
_MOST_PADDING = 10

OR_UNLABELLED = "or, if these faces have no labels, say unlabelled = true (on the command line: --unlabelled)"

SPLITS = {"train": "train", "test": "test", "validation": "val", "valid": "val", "val": "val"}
"""What parts of a set are called, and what we call them."""

_TRUE, _FALSE = frozenset({"1", "true"}), frozenset({"0", "-1", "false"})
_TEXT = frozenset({"domain", "media", "template", "split"})


@dataclass(frozen=True, eq=False)
class Listing:
    """Images by path, with their labels."""

    source: Path
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    """Who is on each image; empty where labels are not read."""
    stamp: str
    """Changes when a file does."""
    opened: Callable[[], AbstractContextManager[Fetch]]
    """Gives the encoded bytes of an image by position; raises ImageError where that fails."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    upright: bool = False
    """Whether photographs are to be turned as their camera says."""
    remarks: tuple[str, ...] = ()
    """What whoever uses them should know, a line each."""
    faults: tuple[str, ...] = ()
    """Why nobody can use them as they lie, a line each."""


def path_inside(path: str, where: str) -> str:
    """The path in its plainest form, which is one below the root."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path or not pure.parts:
        raise DataError(f"{where}: the path {path!r} leaves the folder; write it relative to the folder and without ..")
    return str(pure)


def link_leaves(file: Path, root: Path, where: str) -> str:
    return f"{where}: {file} is a link that leaves {root}; copy what it points to into the folder"


def refuse_outside_link(file: Path, root: Path, where: str) -> None:
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root)):
        raise DataError(link_leaves(file, root, where))


Entry = tuple[str, str, str]  # where it is listed, the path, and the label


@dataclass(frozen=True)
class Sound:
    """Of a list, the positions of what is there, each image once, with the stamps of the files; and the faults."""

    positions: list[int]
    stamps: list[Any]
    faults: tuple[str, ...]


def sound(entries: Sequence[Entry], stamp: Callable[[str, str], Any]) -> Sound:
    """`stamp` gives a path's, with where it is listed; it raises DataError where there is no such image."""
    seen: dict[str, tuple[str, str]] = {}
    found = Sound([], [], ())
    faults: list[str] = []
    for position, (where, path, label) in enumerate(entries):
        try:
            if path in seen:
                raise DataError(_again(where, path, label, *seen[path]))
            seen[path] = where, label
            found.stamps.append(stamp(path, where))
            found.positions.append(position)
        except DataError as fault:
            faults.append(str(fault))
    if faults and not found.positions:
        raise DataError(faults[0])
    return replace(found, faults=tuple(faults))


def _again(where: str, path: str, label: str, before: str, other: str) -> str:
    if other != label:
        return f"{where}: {path} is labelled {label!r}, but {other!r} at {before}; keep the right one"
    return f"{where}: {path} is already listed at {before}; remove one of the two lines"


def read_file(file: Path) -> bytes:
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            raise ImageError("not a plain file")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"a file of more than {MAX_BYTES:,} bytes")
        return file.read_bytes()
    except OSError as error:
        raise ImageError((error.strerror or "cannot be read").lower()) from error


def files_below(root: Path, paths: Sequence[str]) -> Callable[[], AbstractContextManager[Fetch]]:
    """How a listing of files is opened."""
    return lambda: nullcontext(lambda position: read_file(root / paths[position]))


def stamp_below(root: Path, path: str, where: str) -> tuple[int, int]:
    """Size and time of a file that a list names: it has to be there, and really below the root."""
    refuse_outside_link(root / path, root, where)
    try:
        status = (root / path).stat()
    except OSError as error:
        raise DataError(f"{where}: {root / path} is missing; correct the path in the list, or add the file") from error
    return status.st_size, status.st_mtime_ns


def lines_of(file: Path) -> list[str]:
    """The lines of a text; UnicodeDecodeError where it is none in UTF-8."""
    if file.stat().st_size > _MAX_TEXT:
        raise DataError(f"{file}: more than {_MAX_TEXT:,} bytes; such a list is not read")
    return file.read_text(encoding="utf-8-sig").splitlines()


def typed_columns(table: Mapping[str, Sequence[str]], source: Path) -> dict[str, NDArray[Any]]:
    """Columns of yes and no as booleans, which are attributes; others as text. In the order of their names."""
    columns: dict[str, NDArray[Any]] = {}
    for name, values in sorted(table.items()):
        lowered = [value.lower() for value in values]
        if name not in _TEXT and set(lowered) <= _TRUE | _FALSE:
            columns[name] = np.array([value in _TRUE for value in lowered])
        else:
            columns[name] = text_column(values, f"{source}: the column {name!r}")
    return columns


def text_column(values: Sequence[str], what: str) -> NDArray[Any]:
    """As text of one width, which is that of the longest: one long cell must not be paid for by all the others."""
    widest = max(map(len, values), default=0)
    size, wanted = 4 * widest * len(values), 4 * sum(map(len, values))
    if size > _MAX_COLUMN and size > _MOST_PADDING * wanted:
        raise DataError(f"{what} has a cell of {widest:,} characters, far more than others; shorten it")
    return np.array(values)


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Sorted as people count: person 2 before person 10."""
    return sorted(names, key=lambda name: (re.sub(r"\d+", lambda digits: digits[0].zfill(20), name), name))
