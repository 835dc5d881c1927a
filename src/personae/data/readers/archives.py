"""A zip with `images/` and `labels.csv`: columns path and identity, and whatever else is known of an image."""

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.data.images import MAX_BYTES, ImageError
from personae.data.readers.listing import Fetch, Listing, path_inside, refuse_repetition
from personae.errors import DataError

_LABELS = "labels.csv"
_MAX_LABELS = 500_000_000
_TRUE, _FALSE = frozenset({"1", "true"}), frozenset({"0", "-1", "false"})
_TEXT = frozenset({"domain", "media", "template", "split"})
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)

Row = dict[str, str]


def read_archive(file: Path) -> Listing:
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file)
            rows = list(_rows(archive, members, file))
    except _DAMAGED as error:
        raise DataError(f"{file}: not a readable zip ({error}); download or pack it again") from error
    if not rows:
        raise DataError(f"{file}: {_LABELS} lists no images; write one line per image below its header")
    where = [f"{file}, {_LABELS} line {row['line']}" for row in rows]
    paths = tuple(path_inside(row["path"], place) for row, place in zip(rows, where, strict=True))
    labels = tuple(row["identity"] for row in rows)
    refuse_repetition(zip(where, paths, labels, strict=True))
    _refuse_contradiction(rows, where)
    for path, place in zip(paths, where, strict=True):
        if f"images/{path}" not in members:
            raise DataError(f"{place}: images/{path} is not in the zip; add it or remove the line")

    @contextmanager
    def opened() -> Iterator[Fetch]:
        with zipfile.ZipFile(file) as archive:
            yield lambda position: _read(archive, members[f"images/{paths[position]}"])

    status = file.stat()
    return Listing(
        source=file,
        paths=paths,
        labels=labels,
        stamp=repr((status.st_size, status.st_mtime_ns)),
        opened=opened,
        columns=_columns(rows),
    )


def _members(archive: zipfile.ZipFile, file: Path) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = path_inside(member.filename, str(file))
        if name in members and not member.is_dir():
            raise DataError(f"{file}: {name} is in the zip twice; pack it again with one of them")
        members[name] = member
    if _LABELS not in members:
        raise DataError(f"{file}: no {_LABELS} in the zip; it should hold images/ and {_LABELS}")
    return members


def _rows(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], file: Path) -> Iterator[Row]:
    if members[_LABELS].file_size > _MAX_LABELS:
        raise DataError(f"{file}: {_LABELS} declares more than {_MAX_LABELS:,} bytes; such a table is not read")
    try:
        text = archive.read(members[_LABELS]).decode("utf-8-sig")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        header = table.fieldnames or []
        if not {"path", "identity"} <= set(header) or len(set(header)) < len(header):
            raise DataError(
                f"{file}: the header of {_LABELS} is {','.join(header)!r}; it needs path,identity, each once"
            )
        for row in table:
            if None in row or None in row.values() or not row["identity"]:
                complaint = (
                    f"{file}, {_LABELS} line {table.line_num}: not the {len(header)} values that the header names"
                )
                raise DataError(f"{complaint}; correct the line")
            yield row | {"line": str(table.line_num)}
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {_LABELS} is not comma-separated text in UTF-8 ({error}); write it anew") from error


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


def _columns(rows: list[Row]) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name in rows[0].keys() - {"path", "identity", "label", "line"}:
        values = [row[name].strip() for row in rows]
        lowered = [value.lower() for value in values]
        if name not in _TEXT and set(lowered) <= _TRUE | _FALSE:
            columns[name] = np.array([value in _TRUE for value in lowered])
        else:
            columns[name] = np.array(values)
    return dict(sorted(columns.items()))


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.file_size > MAX_BYTES:
        raise ImageError(f"declares more than {MAX_BYTES:,} bytes")
    try:
        return archive.read(member)
    except _DAMAGED as error:
        raise ImageError("damaged in the zip") from error
