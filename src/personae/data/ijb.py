"""The metadata of IJB-B and IJB-C as they are distributed: which images make up a template, and what is compared."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.faces import Rows
from personae.errors import DataError

Roster = tuple[Rows, Rows]
"""Templates and the subjects they are of."""


@dataclass(frozen=True, eq=False)
class IjbMeta:
    """Per image its file name, template and medium; pairs of templates for 1:1; galleries and probes for 1:N."""

    images: tuple[str, ...]
    templates: Rows
    media: Rows
    left: Rows
    right: Rows
    same: NDArray[np.bool_]
    galleries: tuple[Roster, ...]
    probes: Roster | None


def read_ijb(folder: Path, name: str) -> IjbMeta:
    """From a folder `meta` of `name` (ijbb, ijbc); the files of the 1:N protocol may be missing, all together.

    `NAME_face_tid_mid.txt` has lines `image template medium`, `NAME_template_pair_label.txt` lines `template template
    0-or-1`; `NAME_1N_gallery_G1.csv`, `..._G2.csv` and `NAME_1N_probe_mixed.csv` begin with the columns template and
    subject, below a header.
    """
    images = _lines(folder / f"{name}_face_tid_mid.txt", 3)
    templates, media = _numbers([row[1:] for row in images], folder / f"{name}_face_tid_mid.txt")
    pair_file = folder / f"{name}_template_pair_label.txt"
    left, right, label = _numbers(_lines(pair_file, 3), pair_file)
    if not np.isin(label, (0, 1)).all():
        raise DataError(f"{pair_file}: a label is neither 0 nor 1; download the file again")
    rosters = [folder / f"{name}_1N_{part}.csv" for part in ("gallery_G1", "gallery_G2", "probe_mixed")]
    first, second, probes = map(_roster, rosters) if any(file.exists() for file in rosters) else (None, None, None)
    galleries = (first, second) if first and second else ()
    meta = IjbMeta(tuple(row[0] for row in images), templates, media, left, right, label == 1, galleries, probes)
    _refuse_unknown(meta, folder)
    return meta


def _refuse_unknown(meta: IjbMeta, folder: Path) -> None:
    named = [meta.left, meta.right, *(roster[0] for roster in (*meta.galleries, meta.probes) if roster)]
    unknown = np.setdiff1d(np.concatenate(named), meta.templates)
    if len(unknown):
        raise DataError(
            f"{folder}: template {unknown[0]} is compared, but has no image, and so have {len(unknown) - 1} others;"
            " the files are of different releases"
        )


def _lines(file: Path, words: int) -> list[list[str]]:
    try:
        rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give the folder of the metadata") from error
    for number, row in enumerate(rows, 1):
        if len(row) != words:
            raise DataError(f"{file} line {number}: {len(row)} words, not {words}; download the file again")
    return rows


def _numbers(rows: list[list[str]], file: Path) -> Rows:
    """By columns."""
    try:
        return np.array(rows, dtype=np.int64).T
    except ValueError as error:
        raise DataError(
            f"{file}: a template, medium, subject or label is no number; download the file again"
        ) from error


def _roster(file: Path) -> Roster:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = [row[:2] for row in csv.reader(stream)][1:]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); galleries and probes belong together") from error
    if any(len(row) < 2 for row in rows) or not rows:
        raise DataError(f"{file}: not a table that begins with template and subject; download the file again")
    # A template has a line per image.
    numbers, subjects = _numbers(rows, file)
    templates, first = np.unique(numbers, return_index=True)
    return templates, subjects[first]
