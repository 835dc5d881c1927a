"""Faces that come with the pairs to compare: `pairs.txt` as LFW has it, another list of the field, or a `.bin`."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from personae.data.faces import FaceSet, Rows
from personae.data.packs import is_pack, pairs_in
from personae.data.readers.archives import DAMAGED
from personae.data.readers.bins import SUFFIX
from personae.data.readers.groups import find_groups, read_groups
from personae.data.readers.official import (
    FOLDS,
    LFW,
    ListedPair,
    find_layout,
    identities_known,
    lfw_image,
    read_official,
)
from personae.data.readers.pickled import read_bin
from personae.errors import DataError
from personae.words import counted

_MAX_TEXT = 100_000_000


@dataclass(frozen=True, eq=False)
class PairSet:
    """Rows of a face set to compare, fold after fold."""

    left: Rows
    right: Rows
    same: NDArray[np.bool_]
    folds: int | tuple[int, ...]
    """How many there are, or how long each is where pairs were left out."""
    named: bool
    """Whether the identities of the faces are known."""
    alone: bool = True
    """Whether these pairs are all there is to compare; of LFW there are more images than pairs use."""
    left_out: int = 0
    """How many pairs have an image that is not among the faces."""


def read_pairs(path: Path, faces: FaceSet, layout: str | None = None, *, incomplete: bool = False) -> PairSet | None:
    """The pairs that come with the faces at `path`; None where there are none.

    Pairs of which an image was left out of the faces are left out, too; `incomplete`: so are those of which there never
    was one.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() == SUFFIX:
        same = read_bin(path)[1]
        return _pair_set([ListedPair(str(2 * at), str(2 * at + 1), bool(each)) for at, each in enumerate(same)], faces)
    if path.is_dir() and (official := find_layout(path, layout)):
        pairs, _ = read_official(path, official)
        return _pair_set(pairs, faces, named=identities_known(pairs, official.identity))
    text = lfw_pairs(path)
    return None if text is None else _parse(text, f"{path}, {LFW}", faces, incomplete)


def read_group_pairs(path: Path, faces: FaceSet) -> dict[str, PairSet] | None:
    """The pairs of each group of people, as RFW has them; None where there are no groups."""
    path = Path(path).expanduser()
    if not find_groups(path):
        return None
    return {name: _pair_set(pairs, faces, named=True) for name, pairs in read_groups(path).items()}


def _pair_set(pairs: Sequence[ListedPair], faces: FaceSet, *, named: bool = False) -> PairSet:
    row_of = {path: row for row, path in enumerate(faces.columns["path"])}
    rows = [(row_of.get(pair.left), row_of.get(pair.right)) for pair in pairs]
    return _there(rows, [pair.same for pair in pairs], FOLDS, named=named)


def _there(
    ends: Sequence[tuple[int | None, int | None]],
    same: Sequence[bool],
    folds: int,
    *,
    named: bool,
    alone: bool = True,
) -> PairSet:
    """The pairs both of whose images are there; each stays in its fold."""
    there = np.array([None not in pair for pair in ends])
    left, right = (np.array([rows[side] for rows in ends if None not in rows], dtype=np.int64) for side in (0, 1))
    lengths = tuple(int(part.sum()) for part in np.array_split(there, folds))
    left_out = int((~there).sum())
    return PairSet(left, right, np.array(same)[there], lengths if left_out else folds, named, alone, left_out)


def lfw_pairs(path: Path) -> str | None:
    """The `pairs.txt` in a folder, a zip or a pack."""
    try:
        if is_pack(path):
            return pairs_in(path)
        if path.is_dir():
            file = path / LFW
            return file.read_text(encoding="utf-8-sig") if file.is_file() else None
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as archive:
            if LFW not in archive.namelist():
                return None
            if archive.getinfo(LFW).file_size > _MAX_TEXT:
                raise DataError(f"{path}: {LFW} declares more than {_MAX_TEXT:,} bytes; such a list is not read")
            return archive.read(LFW).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {LFW} is not text in UTF-8; write it again") from error
    except DAMAGED as error:
        raise DataError(f"{path}: {LFW} is damaged in the zip ({error}); download or pack it again") from error


def _parse(text: str, source: str, faces: FaceSet, incomplete: bool) -> PairSet:
    """The first line counts folds and pairs; `name n m` are images of one person, `name n other m` of two."""
    row_of = {str(PurePosixPath(path).with_suffix("")): row for row, path in enumerate(faces.columns["path"])}
    first, *lines = text.splitlines() or [""]
    folds, half = _header(first.split(), source)
    ends: list[tuple[int | None, int | None]] = []
    same: list[bool] = []
    for number, line in enumerate(lines, 2):
        words, where = line.split(), f"{source} line {number}"
        if len(words) not in (3, 4):
            raise DataError(f"{where}: {len(words)} words; write `name n m` or `name n other m`")
        other = words[0] if len(words) == 3 else words[2]
        left, right = (
            _row(name, count, row_of, where, incomplete) for name, count in ((words[0], words[1]), (other, words[-1]))
        )
        ends.append((left, right))
        same.append(len(words) == 3)
    if len(ends) != 2 * folds * half:
        raise DataError(
            f"{source}: {counted(len(ends), 'pair')}, but the first line says {folds} folds of {half} of each "
            "kind; correct it"
        )
    return _there(ends, same, folds, named=True, alone=False)


def _header(words: list[str], source: str) -> tuple[int, int]:
    """How many folds there are, and how many pairs of each kind in a fold."""
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        raise DataError(
            f"{source}: the first line is {' '.join(words)!r}; it should be the folds and the pairs in each"
        )
    return int(words[0]), int(words[1])


def _row(name: str, number: str, row_of: dict[str, int], where: str, incomplete: bool) -> int | None:
    image = lfw_image(name, number, where)
    if image not in row_of and not incomplete:
        raise DataError(f"{where}: there is no image {image}; add it, or leave such pairs out with --skip-unreadable")
    return row_of.get(image)
