"""IJB-A, B and C as they are distributed: which images make up a template, and which templates are compared."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.faces import Rows
from personae.data.samples import FaceSamples
from personae.data.streamed import StreamedStore, streamed
from personae.errors import DataError

Roster = tuple[Rows, Rows]
"""Templates and the subjects they are of."""

GALLERIES = {"ijbb": ("S1", "S2"), "ijbc": ("G1", "G2")}
SPLITS = 10
_BOX = ("FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")


@dataclass(frozen=True, eq=False)
class IjbMeta:
    """Per image its file, template and medium; pairs of templates for 1:1; galleries and probes for 1:N."""

    images: tuple[str, ...]
    templates: Rows
    media: Rows
    left: Rows
    right: Rows
    same: NDArray[np.bool_]
    galleries: tuple[Roster, ...]
    probes: Roster | None
    landmarks: NDArray[np.float64] | None = None
    """[N, 5, 2], of the images as they are in their files."""


@dataclass(frozen=True, eq=False)
class IjbImages:
    """The images of a benchmark, and for each of its splits which of them it has (B and C have one split)."""

    samples: FaceSamples
    splits: tuple[tuple[Rows, IjbMeta], ...]


def open_ijb(root: Path, name: str, height: int, width: int, *, as_they_are: bool = False) -> IjbImages:
    """IJB-B or C with the metadata in `meta` and the images in `loose_crop`, aligned by the landmarks where these are
    there; or IJB-A (`ijba`), cut out by the boxes in its tables. Without either, images have to be aligned faces by
    their sizes, unless they are taken `as_they_are`."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the one that {name} was unpacked to")
    if name == "ijba":
        return _open_ijba(root, height, width)
    meta = read_ijb(root / "meta" if (root / "meta").is_dir() else root, name)
    folder = _images_of(root, meta.images[0])
    store = StreamedStore(folder, meta.images, height, width, meta.landmarks, as_they_are=as_they_are)
    return IjbImages(streamed(store, meta.templates), ((np.arange(len(meta.images)), meta),))


def _images_of(root: Path, first: str) -> Path:
    for folder in ("loose_crop", ""):
        if (root / folder / first).is_file():
            return root / folder
    raise DataError(f"{root}: {first} is neither in loose_crop nor in the folder itself; put the images there")


def read_ijb(folder: Path, name: str) -> IjbMeta:
    """From a folder `meta` of `name` (ijbb, ijbc); the files of the 1:N protocol may be missing, all together.

    `NAME_face_tid_mid.txt` has lines `image template medium`, `NAME_template_pair_label.txt` lines `template template
    0-or-1`; `NAME_name_5pts_score.txt`, where it is, lines of an image, five points and a score. The galleries are
    `NAME_1N_gallery_S1.csv` and S2 of IJB-B, G1 and G2 of IJB-C; they and `NAME_1N_probe_mixed.csv` begin with the
    columns template and subject, below a header.
    """
    images = _lines(folder / f"{name}_face_tid_mid.txt", 3)
    if not images:
        raise DataError(f"{folder / f'{name}_face_tid_mid.txt'}: lists no images; download the file again")
    templates, media = _numbers([row[1:] for row in images], folder / f"{name}_face_tid_mid.txt")
    pair_file = folder / f"{name}_template_pair_label.txt"
    left, right, label = _numbers(_lines(pair_file, 3), pair_file)
    if not np.isin(label, (0, 1)).all():
        raise DataError(f"{pair_file}: a label is neither 0 nor 1; download the file again")
    parts = (*(f"gallery_{which}" for which in GALLERIES[name]), "probe_mixed")
    rosters = [folder / f"{name}_1N_{part}.csv" for part in parts]
    first, second, probes = map(_roster, rosters) if any(file.exists() for file in rosters) else (None, None, None)
    galleries = (first, second) if first and second else ()
    names = tuple(row[0] for row in images)
    landmarks = _landmarks(folder / f"{name}_name_5pts_score.txt", names)
    meta = IjbMeta(names, templates, media, left, right, label == 1, galleries, probes, landmarks)
    _refuse_unknown(meta, folder)
    return meta


def _landmarks(file: Path, images: Sequence[str]) -> NDArray[np.float64] | None:
    if not file.exists():
        return None
    rows = _lines(file, 12)
    if tuple(row[0] for row in rows) != tuple(images):
        raise DataError(f"{file}: not the images of the list of templates in their order; take both of one release")
    try:
        points = np.array([row[1:11] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{file}: a coordinate is not a number; download the file again") from error
    return points.reshape(-1, 5, 2)


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
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not text in UTF-8; download the file again") from error
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
            f"{file}: a template, medium, subject or label is not a number; download the file again"
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
    return _subjects(*_numbers(rows, file))


def _subjects(numbers: Rows, subjects: Rows) -> Roster:
    """Each template once."""
    templates, first = np.unique(numbers, return_index=True)
    return templates, subjects[first]


@dataclass(frozen=True, eq=False)
class _Table:
    """A table of IJB-A: one line per image, with its box."""

    templates: Rows
    subjects: Rows
    media: Rows
    files: tuple[str, ...]
    boxes: NDArray[np.float64]

    @property
    def roster(self) -> Roster:
        return _subjects(self.templates, self.subjects)


def _open_ijba(root: Path, height: int, width: int) -> IjbImages:
    """Ten splits; 1:1 and 1:N have templates, with numbers, of their own in each."""
    position: dict[tuple[str, tuple[float, ...]], int] = {}
    splits = []
    for split in range(1, SPLITS + 1):
        verify, gallery, probe = (
            _table(root / f"IJB-A_{kind}_sets" / f"split{split}" / f"{name}_{split}.csv")
            for kind, name in (("11", "verify_metadata"), ("1N", "search_gallery"), ("1N", "search_probe"))
        )
        compared = _comparisons(root / "IJB-A_11_sets" / f"split{split}" / f"verify_comparisons_{split}.csv")
        # Numbers of 1:1 templates and of 1:N templates may coincide, and mean others.
        offset = int(verify.templates.max()) + 1
        tables = [verify, *(_moved(table, offset) for table in (gallery, probe))]
        rows = np.array(
            [
                position.setdefault((file, tuple(box)), len(position))
                for table in tables
                for file, box in zip(table.files, table.boxes.tolist(), strict=True)
            ]
        )
        subject_of = dict(zip(*(side.tolist() for side in verify.roster), strict=True))
        missing = set(compared.flatten().tolist()) - subject_of.keys()
        if missing:
            raise DataError(
                f"{root}: split {split} compares template {min(missing)}, which has no image; unpack it again"
            )
        left, right = compared
        meta = IjbMeta(
            images=tuple(file for table in tables for file in table.files),
            templates=np.concatenate([table.templates for table in tables]),
            media=np.concatenate([table.media for table in tables]),
            left=left,
            right=right,
            same=np.array([subject_of[a] == subject_of[b] for a, b in zip(left.tolist(), right.tolist(), strict=True)]),
            galleries=(tables[1].roster,),
            probes=tables[2].roster,
        )
        splits.append((rows, meta))
    files, boxes = zip(*position, strict=True)
    folder = root / "images" if (root / "images").is_dir() else root
    store = StreamedStore(folder, files, height, width, boxes=np.array(boxes))
    return IjbImages(streamed(store, np.arange(len(files))), tuple(splits))


def _moved(table: _Table, offset: int) -> _Table:
    return _Table(table.templates + offset, table.subjects, table.media, table.files, table.boxes)


def _table(file: Path) -> _Table:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
        templates, subjects, media = _numbers(
            [[row["TEMPLATE_ID"], row["SUBJECT_ID"], row["MEDIA_ID"]] for row in rows], file
        )
        boxes = np.array([[float(row[name] or "nan") for name in _BOX] for row in rows])
        return _Table(templates, subjects, media, tuple(row["FILE"] for row in rows), boxes)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); IJB-A has it for each of ten splits") from error
    except (KeyError, ValueError, TypeError) as error:
        needed = ", ".join(("TEMPLATE_ID", "SUBJECT_ID", "FILE", "MEDIA_ID", *_BOX))
        raise DataError(f"{file}: not a table with the columns {needed}; unpack it again") from error


def _comparisons(file: Path) -> Rows:
    """[2, N], of two templates a line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); IJB-A has it for each of ten splits") from error
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    if not rows or any(len(row) != 2 for row in rows):
        raise DataError(f"{file}: not a table of two templates a line; unpack it again")
    return _numbers(rows, file)
