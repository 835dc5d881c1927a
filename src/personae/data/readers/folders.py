"""A folder per identity, ROOT/<identity>/<image>, as of LFW or CASIA-WebFace; or groups of these.

In ROOT/<group>/<identity>/<image> a group is a split where all are called so (VGGFace2 has `train` and `test`), and
else a domain with people of its own (BUPT-Balancedface and RFW have one for each of four groups of people).
"""

import os
from pathlib import Path

import numpy as np

from personae.data.images import SUFFIXES
from personae.data.readers.listing import (
    OR_UNLABELLED,
    SPLITS,
    Listing,
    files_below,
    in_natural_order,
    refuse_outside_link,
)
from personae.errors import DataError


def read_folders(root: Path) -> Listing:
    paths: list[str] = []
    labels: list[str] = []
    stamps: list[tuple[int, int]] = []
    groups = _groups(root)
    by_split = all(group in SPLITS for group in groups)
    for person in _people_of(root, groups):
        for image in _images(root, person):
            paths.append(f"{person}/{image.name}")
            labels.append(person.partition("/")[2] if groups and by_split else person)
            stamps.append(_stamp(image))
    first = [path.partition("/")[0] for path in paths] if groups else []
    columns = {"split": np.array([SPLITS[group] for group in first])} if by_split else {"domain": np.array(first)}
    return Listing(
        source=root,
        paths=tuple(paths),
        labels=tuple(labels),
        stamp=repr((paths, stamps)),
        opened=files_below(root, paths),
        columns=columns if groups else {},
        upright=True,
    )


def read_heap(root: Path) -> Listing:
    """All images at or below the root, however deep, without labels."""
    images: list[os.DirEntry[str]] = []
    folders = [Path(root)]
    for folder in folders:
        for entry in sorted(_visible(folder), key=lambda entry: entry.name):
            if entry.is_symlink():
                refuse_outside_link(Path(entry), root, str(root))
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry))
            elif _is_image(entry):
                images.append(entry)
    if not images:
        raise DataError(f"{root}: no images ({', '.join(sorted(SUFFIXES))}) at or below it; check the path")
    paths = [Path(image).relative_to(root).as_posix() for image in images]
    return Listing(
        source=root,
        paths=tuple(paths),
        labels=(),
        stamp=repr((paths, [_stamp(image) for image in images])),
        opened=files_below(root, paths),
        upright=True,
    )


def is_flat(path: Path) -> bool:
    """Whether it is a folder with images right below it, which then are of nobody known."""
    return path.is_dir() and any(_is_image(entry) for entry in _visible(path))


def _groups(root: Path) -> list[str]:
    """The folders of the root if all of them hold folders and no images."""
    people = _people(root, root)
    return people if all(_holds_folders(root / name) for name in people) else []


def _holds_folders(folder: Path) -> bool:
    inside = _visible(folder)
    return any(entry.is_dir() for entry in inside) and not any(_is_image(entry) for entry in inside)


def _people_of(root: Path, groups: list[str]) -> list[str]:
    if not groups:
        return _people(root, root)
    return [f"{group}/{person}" for group in groups for person in _people(root / group, root)]


def _people(folder: Path, root: Path) -> list[str]:
    folders = []
    for entry in _visible(folder):
        if entry.is_symlink():
            refuse_outside_link(Path(entry), root, str(root))
        if entry.is_dir():
            folders.append(entry.name)
        elif _is_image(entry):
            raise DataError(
                f"{entry.path}: an image outside of any identity's folder; "
                f"move it to {folder}/<identity>/, {OR_UNLABELLED}"
            )
    if not folders:
        raise DataError(f"{folder}: an empty folder; it should hold one folder of images per identity")
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
