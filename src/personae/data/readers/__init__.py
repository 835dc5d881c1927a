"""Readers of faces on disk: each recognises one layout, by what is there, and lists what is in it."""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from personae.data.levels import Level
from personae.data.readers.archives import (
    is_unpacked,
    read_archive,
    read_archived_heap,
    read_unpacked,
    read_unpacked_heap,
)
from personae.data.readers.bins import SUFFIX, list_bin
from personae.data.readers.celeba import is_celeba, read_celeba
from personae.data.readers.folders import read_folders, read_heap
from personae.data.readers.groups import find_groups, list_groups
from personae.data.readers.listing import Listing
from personae.data.readers.lists import SUFFIXES, read_list
from personae.data.readers.official import find_layout, find_layouts, read_official, read_several
from personae.data.readers.records import is_records, read_records
from personae.data.readers.tables import is_tables, read_tables
from personae.errors import ConfigError, DataError

_PER_IDENTITY = "a folder per identity"
_LOOKED_INTO = 20  # folders

_ACCEPTED = (
    "a folder with one folder per identity, CelebA's own folder, a zip with images/ and labels.csv, a text list of"
    " `path label`, a .rec with its .idx, Parquet, a pack, or a .bin of pairs"
)


@dataclass(frozen=True)
class FaceLayout:
    """A way in which faces lie on disk: how it is recognised, and read."""

    name: str
    fits: Callable[[Path], bool]
    read: Callable[[Path], Listing]


_FOLDERS = (
    FaceLayout("CelebA", is_celeba, read_celeba),
    FaceLayout("RFW", lambda path: bool(find_groups(path)), list_groups),
    FaceLayout("images/ and labels.csv", is_unpacked, read_unpacked),
    FaceLayout("records of MXNet (.rec)", is_records, read_records),
    FaceLayout("Parquet", is_tables, read_tables),
)
_FILES = (
    FaceLayout(
        "zip with labels.csv", lambda path: path.suffix.lower() == ".zip" or zipfile.is_zipfile(path), read_archive
    ),
    FaceLayout("records of MXNet (.rec)", is_records, read_records),
    FaceLayout("Parquet", is_tables, read_tables),
    FaceLayout("pair file (.bin)", lambda path: path.suffix.lower() == SUFFIX, list_bin),
    FaceLayout("text list", lambda path: path.suffix.lower() in SUFFIXES, read_list),
)
_UNLABELLED = {
    "zip with labels.csv": FaceLayout("zip of images", Path.is_file, read_archived_heap),
    "images/ and labels.csv": FaceLayout("images/ and labels.csv", Path.is_dir, read_unpacked_heap),
    "text list": FaceLayout("text list of images", Path.is_file, partial(read_list, unlabelled=True)),
    _PER_IDENTITY: FaceLayout("a folder of images", Path.is_dir, read_heap),
}
"""What is read in the place of a layout where labels are not; in other layouts, they are dropped."""


def read_listing(
    path: Path, layout: str | None = None, *, unlabelled: bool = False, identity_level: Level | None = None
) -> Listing:
    """What the faces at `path` declare, in whichever of the accepted layouts; `layout` names a benchmark's.

    `unlabelled`: labels are not read. `identity_level`: of several levels of folders, the one that is the people.
    """
    listing = recognise(path, layout, unlabelled=unlabelled, identity_level=identity_level)[1]
    if listing.faults:
        raise DataError(listing.faults[0])
    return listing


def recognise(
    path: Path, layout: str | None = None, *, unlabelled: bool = False, identity_level: Level | None = None
) -> tuple[str, Listing]:
    """What the layout is called, and what the faces in it declare, whatever is wrong with them."""
    try:
        found = _layout(path, layout, unlabelled, identity_level)
        if identity_level is not None and found.name != _PER_IDENTITY:
            raise ConfigError(f"{path}: identity_level is for folders of people, not for {found.name}; leave it out")
        listing = found.read(path)
        listing = replace(listing, labels=()) if unlabelled else listing
        return found.name, replace(listing, faults=(*listing.faults, *_further_down(path, listing)))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error


def _further_down(path: Path, listing: Listing) -> Iterator[str]:
    """Of folders that make no sense: layouts with a name of their own that are in them."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir()) if listing.faults and path.is_dir() else []
    for folder in folders[:_LOOKED_INTO]:
        named = [layout.name for layout in _FOLDERS if layout.fits(folder)]
        if known := named or [layout.name for layout in find_layouts(folder)]:
            yield f"{path}: in {folder.name} it is laid out as {' and '.join(known)}; give {folder}"


def _layout(path: Path, layout: str | None, unlabelled: bool, identity_level: Level | None) -> FaceLayout:
    found = _labelled_layout(path, layout, identity_level)
    return _UNLABELLED.get(found.name, found) if unlabelled else found


def _labelled_layout(path: Path, layout: str | None, identity_level: Level | None) -> FaceLayout:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; give {_ACCEPTED}")
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{path}: neither a file nor a folder; give {_ACCEPTED}")
    for known in _FOLDERS if path.is_dir() else _FILES:
        if known.fits(path):
            return known
    if not path.is_dir():
        raise DataError(f"{path}: not a layout that is known; give {_ACCEPTED} ({', '.join(sorted(SUFFIXES))})")
    if layout is None and len(several := find_layouts(path)) > 1:
        name = " and ".join(each.name for each in several)
        return FaceLayout(name, Path.is_dir, lambda root: read_several(root, several))
    if official := find_layout(path, layout):
        return FaceLayout(official.name, Path.is_dir, lambda root: read_official(root, official)[1])
    return FaceLayout(_PER_IDENTITY, Path.is_dir, partial(read_folders, identity_level=identity_level))
