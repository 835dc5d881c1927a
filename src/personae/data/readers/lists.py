"""A text list of `path label`, one image a line, with paths relative to the folder of the list.

With tabs it may also be a list of InsightFace (`1 path label`) or of MXNet (`number label path`). Where
labels are not read, a line may be a path alone.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from personae.data.images import HEIC
from personae.data.images import SUFFIXES as IMAGES
from personae.data.readers.listing import (
    OR_UNLABELLED,
    Listing,
    files_below,
    lines_of,
    path_inside,
    refuse_repetition,
    stamp_below,
)
from personae.errors import DataError

SUFFIXES = frozenset({".txt", ".lst", ".list"})


def read_list(file: Path, *, unlabelled: bool = False) -> Listing:
    root = file.parent
    entries = list(_unlabelled_entries(file) if unlabelled else _entries(file))
    if not entries:
        line = "path" if unlabelled else "path label"
        raise DataError(f"{file}: an empty list; write one line `{line}` per image")
    refuse_repetition(entries)
    stamps = [stamp_below(root, path, where) for where, path, _ in entries]
    paths = tuple(path for _, path, _ in entries)
    return Listing(
        source=file,
        paths=paths,
        labels=() if unlabelled else tuple(label for _, _, label in entries),
        stamp=repr((paths, stamps)),
        opened=files_below(root, paths),
        upright=True,
    )


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Where a line is, and what it says."""
    try:
        lines = lines_of(file)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not a text in UTF-8; write one line `path label` per image") from error
    for number, line in enumerate(lines, start=1):
        yield f"{file}, line {number}", line


def _unlabelled_entries(file: Path) -> Iterator[tuple[str, str, str]]:
    """Lines that are a path, with blanks in it or not, and the paths of lines that have a label, too."""
    for where, line in _lines(file):
        if "\t" not in line and _is_image(line.strip()):
            yield where, path_inside(line.strip(), where), ""
            continue
        images = [word.strip() for word in (line.split("\t") if "\t" in line else line.rsplit(maxsplit=1))]
        images = [word for word in images if _is_image(word)]
        if len(images) == 1:
            yield where, path_inside(images[0], where), ""
        elif line.strip():
            raise DataError(f"{where}: {line.strip()[:80]!r} does not name one image; write its path")


def _entries(file: Path) -> Iterator[tuple[str, str, str]]:
    for where, line in _lines(file):
        match [word.strip() for word in line.split("\t")]:
            case [_, label, *_, path] if _is_image(path):
                yield where, path_inside(path, where), _plain(label)
                continue
            case [_, path, label] if _is_image(path):
                yield where, path_inside(path, where), label
                continue
        match line.rsplit(maxsplit=1):
            case [path, label] if not _is_image(label):
                yield where, path_inside(path.strip(), where), label
            case [*words] if words:
                raise DataError(f"{where}: {' '.join(words)!r} has no label; write `path label`, {OR_UNLABELLED}")


def _is_image(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in IMAGES | HEIC


def _plain(label: str) -> str:
    """MXNet writes whole numbers as 7.000000."""
    return label.rstrip("0").removesuffix(".") if "." in label and label.replace(".", "", 1).isdecimal() else label
