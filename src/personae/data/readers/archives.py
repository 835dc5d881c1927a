"""`images/` and `labels.csv` in a zip or a folder: columns path and identity, and what else is known of an image."""

import csv
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from personae.data.images import MAX_BYTES, SUFFIXES, ImageError, is_image
from personae.data.readers.folders import read_heap
from personae.data.readers.listing import (
    OR_UNLABELLED,
    Fetch,
    Listing,
    files_below,
    path_inside,
    sound,
    stamp_below,
    typed_columns,
)
from personae.data.readers.official import LFW
from personae.data.readers.tree import left_out
from personae.errors import DataError

LABELS, IMAGES = "labels.csv", "images"
_MAX_LABELS = 500_000_000
_NAMED_IN_VAIN = 100_000  # lines of a table in a zip that may name no file of it: each is told
_LONGEST_LINE = 1_000_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of others, `zipfile` unpacks all at once, however large that is
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)

Row = dict[str, str]


def read_archive(file: Path) -> Listing:
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file)
            if LABELS not in members:
                raise DataError(f"{file}: no {LABELS} in the zip; it should hold images/ and {LABELS}, {OR_UNLABELLED}")
            with _text_in(archive, members[LABELS], file) as text:
                rows = _rows(text, file, most=len(members) + _NAMED_IN_VAIN)
    except DAMAGED as error:
        raise DataError(f"{file}: not a readable zip ({error}); download or pack it again") from error

    def there(path: str, where: str) -> None:
        if f"{IMAGES}/{path}" not in members:
            raise DataError(f"{where}: {IMAGES}/{path} is not in the zip; add it or remove the line")

    labels = _checked(rows, file, there)
    return Listing(
        source=file,
        paths=labels.paths,
        labels=labels.people,
        stamp=_stamp(file),
        opened=_opened(file, [members[f"{IMAGES}/{path}"] for path in labels.paths]),
        columns=labels.columns,
        faults=labels.faults,
    )


def read_archived_heap(file: Path) -> Listing:
    """All images in a zip, wherever they are in it, without labels; a `labels.csv` may say what each is for."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file)
            rows = []
            if LABELS in members:
                with _text_in(archive, members[LABELS], file) as text:
                    rows = _rows(text, file, ("path",), most=len(members) + _NAMED_IN_VAIN)
    except DAMAGED as error:
        raise DataError(f"{file}: not a readable zip ({error}); download or pack it again") from error
    files = [name for name, member in members.items() if not member.is_dir() and _is_visible(name)]
    paths = [name for name in files if is_image(name)]
    others = [name for name in files if not is_image(name) and name not in (LABELS, LFW)]
    if not paths:
        raise DataError(f"{file}: no images ({', '.join(sorted(SUFFIXES))}) in the zip; check the path")
    return Listing(
        source=file,
        paths=tuple(paths),
        labels=(),
        stamp=_stamp(file),
        opened=_opened(file, [members[path] for path in paths]),
        columns=_purposes(rows, paths, file),
        remarks=tuple(f"{file}: {remark}" for remark in left_out(others)),
    )


def read_unpacked_heap(root: Path) -> Listing:
    """What a zip of images would hold, in a folder."""
    listing = read_heap(root / IMAGES)
    with (root / LABELS).open("rb") as text:
        rows = _rows(text, root, ("path",))
    return replace(listing, source=root, columns=_purposes(rows, [f"{IMAGES}/{path}" for path in listing.paths], root))


def _purposes(rows: list[Row], paths: list[str], source: Path) -> dict[str, NDArray[Any]]:
    """What each image is for, where the table says it."""
    known = {f"{IMAGES}/{row['path']}": row["split"].strip() for row in rows if "split" in row}
    if not known:
        return {}
    missing = [path for path in paths if path not in known]
    if missing:
        raise DataError(f"{source}: {LABELS} does not say what {missing[0]} is for; add a line, or remove the image")
    return {"split": np.array([known[path] for path in paths])}


def _is_visible(name: str) -> bool:
    return not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _opened(file: Path, members: list[zipfile.ZipInfo]) -> Callable[[], AbstractContextManager[Fetch]]:
    @contextmanager
    def opened() -> Iterator[Fetch]:
        with zipfile.ZipFile(file) as archive:
            yield lambda position: _read(archive, members[position])

    return opened


def _stamp(file: Path) -> str:
    status = file.stat()
    return repr((status.st_size, status.st_mtime_ns))


def is_unpacked(root: Path) -> bool:
    return (root / LABELS).is_file() and (root / IMAGES).is_dir()


def read_unpacked(root: Path) -> Listing:
    """What a zip would hold, in a folder."""
    if (root / LABELS).stat().st_size > _MAX_LABELS:
        raise DataError(f"{root}: {LABELS} has more than {_MAX_LABELS:,} bytes; such a table is not read")
    with (root / LABELS).open("rb") as text:
        rows = _rows(text, root)
    labels = _checked(rows, root, lambda path, where: stamp_below(root, f"{IMAGES}/{path}", where))
    return Listing(
        source=root,
        paths=labels.paths,
        labels=labels.people,
        stamp=repr(labels.stamps),
        opened=files_below(root / IMAGES, labels.paths),
        columns=labels.columns,
        faults=labels.faults,
    )


@dataclass(frozen=True)
class _Labels:
    """The table, column by column, without the lines that are at fault."""

    paths: tuple[str, ...]
    people: tuple[str, ...]
    columns: dict[str, NDArray[Any]]
    stamps: list[Any]
    faults: tuple[str, ...]


def _checked(rows: list[Row], source: Path, stamp: Callable[[str, str], Any]) -> _Labels:
    if not rows:
        raise DataError(f"{source}: {LABELS} lists no images; write one line per image below its header")
    where = [f"{source}, {LABELS} line {row['line']}" for row in rows]
    paths = [path_inside(row["path"], place) for row, place in zip(rows, where, strict=True)]
    people = [row["identity"] for row in rows]
    good = sound(list(zip(where, paths, people, strict=True)), stamp)
    _refuse_contradiction(rows, where)
    others = rows[0].keys() - {"path", "identity", "label", "line"}
    return _Labels(
        tuple(paths[position] for position in good.positions),
        tuple(people[position] for position in good.positions),
        typed_columns({name: [rows[position][name].strip() for position in good.positions] for name in others}, source),
        good.stamps,
        good.faults,
    )


def _text_in(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> IO[bytes]:
    if member.file_size > _MAX_LABELS:
        raise DataError(f"{file}: {LABELS} declares more than {_MAX_LABELS:,} bytes; such a table is not read")
    return archive.open(member)


def _members(archive: zipfile.ZipFile, file: Path) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = path_inside(member.filename, str(file))
        if name in members and not member.is_dir():
            raise DataError(f"{file}: {name} is in the zip twice; pack it again with one of them")
        if member.compress_type not in _METHODS:
            raise DataError(f"{file}: {name} is packed by a method that is not read; pack it again with deflate")
        members[name] = member
    return members


def _rows(
    content: IO[bytes], file: Path, needed: tuple[str, ...] = ("path", "identity"), *, most: int | None = None
) -> list[Row]:
    """The lines of a table. It is read as it is unpacked, and no further than `most` lines."""
    rows: list[Row] = []
    try:
        with io.TextIOWrapper(content, "utf-8-sig", newline="") as text:
            table = csv.DictReader(_lines(text), strict=True)
            header = table.fieldnames or []
            if not set(needed) <= set(header) or len(set(header)) < len(header):
                advice = f"; {OR_UNLABELLED}" if "identity" in needed and "identity" not in header else ""
                raise DataError(
                    f"{file}: the header of {LABELS} is {','.join(header)!r}; "
                    f"it needs {','.join(needed)}, each once{advice}"
                )
            for row in table:
                if None in row or None in row.values() or not all(row[name] for name in needed):
                    complaint = (
                        f"{file}, {LABELS} line {table.line_num}: not the {len(header)} values that the header names"
                    )
                    raise DataError(f"{complaint}; correct the line")
                rows.append(row | {"line": str(table.line_num)})
                if most is not None and len(rows) > most:
                    raise DataError(
                        f"{file}: {LABELS} has far more lines than there are files in the zip; write it again"
                    )
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {LABELS} is not comma-separated text in UTF-8 ({error}); write it again") from error
    return rows


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Of a line without an end no more is read than a line can have."""
    while line := text.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise csv.Error(f"a line has more than {_LONGEST_LINE:,} characters")
        yield line


def _refuse_contradiction(rows: list[Row], where: list[str]) -> None:
    """`label` numbers the identities again; the two must agree."""
    numbers: dict[str, str] = {}
    for row, place in zip(rows, where, strict=True):
        number = row.get("label", "")
        if numbers.setdefault(row["identity"], number) != number:
            both = f"{numbers[row['identity']]!r} and {number!r}"
            raise DataError(
                f"{place}: identity {row['identity']!r} has the labels {both}; give each identity one label"
            )


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.file_size > MAX_BYTES:
        raise ImageError(f"declares more than {MAX_BYTES:,} bytes")
    try:
        return archive.read(member)
    except DAMAGED as error:
        raise ImageError("damaged in the zip") from error
