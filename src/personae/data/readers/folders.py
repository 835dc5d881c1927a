"""A folder per identity: ROOT/<identity>/<image>."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from personae.data.images import SUFFIXES
from personae.data.readers.listing import Fetch, Listing, in_natural_order, read_file, refuse_outside_link
from personae.errors import DataError


def read_folders(root: Path, unlabelled: bool = False) -> Listing:
    """`unlabelled`: images right below the root are welcome, too, and count as one identity of its name."""
    paths: list[str] = []
    labels: list[str] = []
    stamps: list[tuple[int, int]] = []
    flat = unlabelled and any(_is_image(entry) for entry in _visible(root))
    for identity in [""] if flat else _people(root):
        images = _images(root, identity)
        for image in images:
            paths.append(f"{identity}/{image.name}" if identity else image.name)
            labels.append(identity or root.name)
            stamps.append(_stamp(image))

    @contextmanager
    def opened() -> Iterator[Fetch]:
        yield lambda position: read_file(root / paths[position])

    return Listing(
        source=root,
        paths=tuple(paths),
        labels=tuple(labels),
        stamp=repr((paths, stamps)),
        opened=opened,
        upright=True,
    )


def _people(root: Path) -> list[str]:
    folders = []
    for entry in _visible(root):
        if entry.is_symlink():
            refuse_outside_link(Path(entry), root, str(root))
        if entry.is_dir():
            folders.append(entry.name)
        elif _is_image(entry):
            raise DataError(f"{entry.path}: an image outside of any identity's folder; move it to {root}/<identity>/")
    if not folders:
        raise DataError(f"{root}: an empty folder; it should hold one folder of images per identity")
    return in_natural_order(folders)


def _images(root: Path, identity: str) -> list[os.DirEntry[str]]:
    images = []
    for entry in sorted(_visible(root / identity), key=lambda entry: entry.name):
        if entry.is_symlink():
            refuse_outside_link(Path(entry), root, str(root))
        if entry.is_dir():
            raise DataError(f"{entry.path}: a folder inside of an identity's folder; images belong right below it")
        if _is_image(entry):
            images.append(entry)
    if not images:
        known = ", ".join(sorted(SUFFIXES))
        raise DataError(f"{root / identity}: no images ({known}) of this identity; add some or remove the folder")
    return images


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is_image(entry: os.DirEntry[str]) -> bool:
    return Path(entry.name).suffix.lower() in SUFFIXES


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:  # a broken link, which is told with the other unreadable images
        return 0, 0
    return status.st_size, status.st_mtime_ns
