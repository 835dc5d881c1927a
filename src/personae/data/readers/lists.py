"""A text list of `path label`, one image per line, with paths relative to the folder of the list.

With tabs it may also be a list of InsightFace (`1 path label`) or of MXNet (`number label path`). Where
labels are not read, a line may be a path alone.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from personae.data.images import HEIC
from personae.data.images import SUFFIXES as IMAGES
from personae.data.readers.listing import (
    OR_UNLABELLED,
    Entry,
    Listing,
    files_below,
    lines_of,
    path_inside,
    sound,
    stamp_below,
)
from personae.errors import DataError

SUFFIXES = frozenset({".txt", ".lst", ".list"})


def read_list(file: Path, *, unlabelled: bool = False) -> Listing:
    """All lines that name an image which is there; the others are faults of the list."""
    root, parse = file.parent, _unlabelled_entry if unlabelled else _entry
    entries: list[Entry] = []
    faults: list[str] = []
    for where, line in _lines(file):
        try:
            entries += [(where, *parse(where, line))] if line.strip() else []
        except DataError as fault:
            faults.append(str(fault))
    if not entries:
        line = "path" if unlabelled else "path label"
        raise DataError(faults[0] if faults else f"{file}: an empty list; write one line `{line}` per image")
    good = sound(entries, partial(stamp_below, root))
    kept = [entries[position] for position in good.positions]
    paths = tuple(path for _, path, _ in kept)
    return Listing(
        source=file,
        paths=paths,
        labels=() if unlabelled else tuple(label for _, _, label in kept),
        stamp=repr((paths, good.stamps)),
        opened=files_below(root, paths),
        upright=True,
        faults=(*faults, *good.faults),
    )


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Where a line is, and what it says."""
    try:
        lines = lines_of(file)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not a text in UTF-8; write one line `path label` per image") from error
    for number, line in enumerate(lines, start=1):
        yield f"{file}, line {number}", line


def _unlabelled_entry(where: str, line: str) -> tuple[str, str]:
    """Of a line that is a path, with blanks in it or not, or one that has a label, too: the path."""
    if "\t" not in line and _is_image(line.strip()):
        return path_inside(line.strip(), where), ""
    words = line.split("\t") if "\t" in line else line.rsplit(maxsplit=1)
    images = [word.strip() for word in words if _is_image(word.strip())]
    if len(images) != 1:
        raise DataError(f"{where}: {line.strip()[:80]!r} does not name one image; write its path")
    return path_inside(images[0], where), ""


def _entry(where: str, line: str) -> tuple[str, str]:
    match [word.strip() for word in line.split("\t")]:
        case [_, label, *_, path] if _is_image(path):
            return path_inside(path, where), _plain(label)
        case [_, path, label] if _is_image(path):
            return path_inside(path, where), label
    match line.rsplit(maxsplit=1):
        case [path, label] if not _is_image(label):
            return path_inside(path.strip(), where), label
    raise DataError(f"{where}: {line.strip()!r} has no label; write `path label`, {OR_UNLABELLED}")


def _is_image(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in IMAGES | HEIC


def _plain(label: str) -> str:
    """MXNet writes whole numbers as 7.000000."""
    return label.rstrip("0").removesuffix(".") if "." in label and label.replace(".", "", 1).isdecimal() else label
