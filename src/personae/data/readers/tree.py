"""A folder gone through once, however deep: the images in it, and everything that is not taken for one."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from personae.data.images import HEIC, HEIC_ADVICE, is_image, reads_heic
from personae.data.readers.listing import in_natural_order
from personae.errors import DataError

Stamp = tuple[int, int]

_DEEPEST = 100


@dataclass(frozen=True)
class Tree:
    """Paths from the root. What is hidden is not there."""

    root: Path
    images: dict[str, Stamp]
    """With size and time, folder by folder in natural order, in a folder by name."""
    others: tuple[str, ...]
    """Files that are not read."""
    empty: tuple[str, ...]
    """Folders without an image at or below them; of nested ones the outermost."""
    outside: tuple[str, ...]
    """Links that leave the root, which are not followed."""


def walk(root: Path) -> Tree:
    images: dict[str, Stamp] = {}
    others: list[str] = []
    empty: list[str] = []
    outside: list[str] = []
    real = os.path.realpath(root)

    def visit(folder: str, above: frozenset[str]) -> None:
        if len(above) > _DEEPEST:
            raise DataError(
                f"{root}: folders in more than {_DEEPEST} folders, which nobody looks into; give one of them"
            )
        entries = _visible(root / folder)
        inside = {entry.name: f"{folder}/{entry.name}" if folder else entry.name for entry in entries}
        folders = []
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = inside[entry.name]
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(real):
                outside.append(path)
            elif entry.is_dir():
                folders.append(entry.name)
            elif is_image(entry.name):
                images[path] = _stamp(entry)
            else:
                others.append(path)
        for name in in_natural_order(folders):
            target = os.path.realpath(root / inside[name])
            before, nested = len(images), len(empty)
            if target not in above:  # else it is a link to where we come from
                visit(inside[name], above | {target})
            if len(images) == before:
                empty[nested:] = [inside[name]]

    visit("", frozenset({real}))
    return Tree(root, images, tuple(others), tuple(empty), tuple(outside))


def kinds_of(paths: Iterable[str]) -> dict[str, int]:
    """How many files there are of each kind, by the ends of their names; the most frequent first."""
    return dict(sorted(Counter(map(_kind, paths)).items(), key=lambda item: (-item[1], item[0])))


def left_out(others: Iterable[str]) -> Iterator[str]:
    """A line on files that are not read, if there are any."""
    if kinds := kinds_of(others):
        count = sum(kinds.values())
        told = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        advice = f"; {HEIC_ADVICE}" if "HEIC" in kinds and not reads_heic() else ""
        yield f"{count} {'file is' if count == 1 else 'files are'} left out ({told}){advice}"


def _kind(path: str) -> str:
    suffix = PurePosixPath(path).suffix.lower()
    return "HEIC" if suffix in HEIC else suffix.removeprefix(".").upper() or "without an ending"


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _stamp(entry: os.DirEntry[str]) -> Stamp:
    try:
        status = entry.stat()
    except OSError:  # a broken link, which is told with the other unreadable images
        return 0, 0
    return status.st_size, status.st_mtime_ns
