"""Readers of faces on disk: each recognises one layout and lists what is in it."""

import zipfile
from pathlib import Path

from personae.data.readers.archives import read_archive
from personae.data.readers.bins import SUFFIX, list_bin
from personae.data.readers.celeba import is_celeba, read_celeba
from personae.data.readers.folders import read_folders
from personae.data.readers.groups import find_groups, list_groups
from personae.data.readers.listing import Listing
from personae.data.readers.lists import SUFFIXES, read_list
from personae.data.readers.official import find_layout, read_official
from personae.errors import DataError

_ACCEPTED = (
    "a folder with one folder per identity, CelebA's own folder, a zip with images/ and labels.csv, a text list of"
    " `path label`, or a .bin of pairs"
)


def read_listing(path: Path, layout: str | None = None, *, unlabelled: bool = False) -> Listing:
    """What the faces at `path` declare, in whichever of the accepted layouts; `layout` names a benchmark's."""
    try:
        if path.is_dir():
            if is_celeba(path):
                return read_celeba(path)
            if find_groups(path):
                return list_groups(path)
            official = find_layout(path, layout)
            return read_official(path, official)[1] if official else read_folders(path, unlabelled)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give {_ACCEPTED}")
        if path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
            return read_archive(path)
        if path.suffix.lower() == SUFFIX:
            return list_bin(path)
        if path.suffix.lower() in SUFFIXES:
            return read_list(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    raise DataError(f"{path}: not a layout that is known; give {_ACCEPTED} ({', '.join(sorted(SUFFIXES))})")
