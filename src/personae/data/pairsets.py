"""Faces that come with the pairs to compare: `pairs.txt` beside them, as LFW has it, or a `.bin` of the field."""

import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from personae.data.faces import FaceSet, Rows
from personae.data.readers.bins import SUFFIX
from personae.data.readers.pickled import read_bin
from personae.errors import DataError

PAIRS = "pairs.txt"
FOLDS = 10
_MAX_TEXT = 100_000_000


@dataclass(frozen=True, eq=False)
class PairSet:
    """Rows of a face set to compare, fold after fold."""

    left: Rows
    right: Rows
    same: NDArray[np.bool_]
    folds: int
    named: bool
    """Whether the identities of the faces are known."""


def read_pairs(path: Path, faces: FaceSet) -> PairSet | None:
    """The pairs that come with the faces at `path`; None where there are none."""
    path = Path(path).expanduser()
    if path.suffix.lower() == SUFFIX:
        same = np.array(read_bin(path)[1])
        rows = np.arange(2 * len(same))
        return PairSet(rows[::2], rows[1::2], same, FOLDS, named=False)
    text = _text(path)
    return None if text is None else _parse(text, f"{path}, {PAIRS}", faces)


def _text(path: Path) -> str | None:
    try:
        if path.is_dir():
            file = path / PAIRS
            return file.read_text(encoding="utf-8-sig") if file.is_file() else None
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as archive:
            if PAIRS not in archive.namelist():
                return None
            if archive.getinfo(PAIRS).file_size > _MAX_TEXT:
                raise DataError(f"{path}: {PAIRS} declares more than {_MAX_TEXT:,} bytes; such a list is not read")
            return archive.read(PAIRS).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {PAIRS} is not text in UTF-8; write it anew") from error


def _parse(text: str, source: str, faces: FaceSet) -> PairSet:
    """The first line counts folds and pairs; `name n m` are images of one person, `name n other m` of two."""
    row_of = {str(PurePosixPath(path).with_suffix("")): row for row, path in enumerate(faces.columns["path"])}
    first, *lines = text.splitlines() or [""]
    folds, half = _header(first.split(), source)
    pairs: list[tuple[int, int, bool]] = []
    for number, line in enumerate(lines, 2):
        words, where = line.split(), f"{source} line {number}"
        if len(words) not in (3, 4):
            raise DataError(f"{where}: {len(words)} words; write `name n m` or `name n other m`")
        other = words[0] if len(words) == 3 else words[2]
        ends = [_row(name, count, row_of, where) for name, count in ((words[0], words[1]), (other, words[-1]))]
        pairs.append((ends[0], ends[1], len(words) == 3))
    if len(pairs) != 2 * folds * half:
        raise DataError(
            f"{source}: {len(pairs)} pairs, but the first line says {folds} folds of {half} of each kind; correct it"
        )
    left, right, same = (np.array(side) for side in zip(*pairs, strict=True))
    return PairSet(left, right, same, folds, named=True)


def _header(words: list[str], source: str) -> tuple[int, int]:
    """How many folds there are, and how many pairs of each kind in a fold."""
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        raise DataError(
            f"{source}: the first line is {' '.join(words)!r}; it should be the folds and the pairs in each"
        )
    return int(words[0]), int(words[1])


def _row(name: str, number: str, row_of: dict[str, int], where: str) -> int:
    if not number.isdecimal():
        raise DataError(f"{where}: {number!r} is no number of an image of {name}; correct the line")
    image = f"{name}/{name}_{int(number):04}"
    if image not in row_of:
        raise DataError(f"{where}: there is no image {image}; add it or remove the line")
    return row_of[image]
