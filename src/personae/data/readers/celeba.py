"""CelebA as its authors distribute it: images in one folder, and text files that say who and what is on them.

`identity_CelebA.txt` is what makes a folder CelebA. `list_attr_celeba.txt` gives attributes, `list_eval_partition.txt`
the split. Each may lie in the folder itself or in `Anno` and `Eval` below it, the images in `img_align_celeba` or
`img_celeba`, or in `Img` with one of these.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.data.readers.listing import (
    Listing,
    files_below,
    lines_of,
    path_inside,
    sound,
    stamp_below,
)
from personae.errors import DataError
from personae.words import counted

IDENTITIES, ATTRIBUTES, SPLITS = "identity_CelebA.txt", "list_attr_celeba.txt", "list_eval_partition.txt"
_FOLDERS = ("", "Anno", "Eval")
_IMAGES = ("img_align_celeba", "Img/img_align_celeba", "img_celeba", "Img/img_celeba")
_SPLIT = {"0": "train", "1": "val", "2": "test"}
_TRUTH = {"1": True, "-1": False}


def is_celeba(root: Path) -> bool:
    return _file(root, IDENTITIES) is not None


def read_celeba(root: Path) -> Listing:
    images = next((root / name for name in _IMAGES if (root / name).is_dir()), None)
    if images is None:
        raise DataError(f"{root}: it has {IDENTITIES} but no images; put them into {root / _IMAGES[0]}")
    file = _file(root, IDENTITIES)
    assert file is not None
    entries = [(where, path_inside(words[0], where), words[1]) for where, words in _lines(file, 0, 2)]
    if not entries:
        raise DataError(f"{file}: it lists no images; restore it from the distribution")
    good = sound(entries, partial(stamp_below, images))
    kept = [entries[position] for position in good.positions]
    paths = tuple(path for _, path, _ in kept)
    return Listing(
        source=root,
        paths=paths,
        labels=tuple(label for _, _, label in kept),
        stamp=repr(good.stamps),
        opened=files_below(images, paths),
        columns=_attributes(root, paths) | _splits(root, paths),
        upright=True,
        faults=good.faults,
    )


def _attributes(root: Path, paths: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """A column of booleans for each name in the second line; the first is the number of images."""
    file = _file(root, ATTRIBUTES)
    if file is None:
        return {}
    names = _text(file)[1:2]
    header = names[0].split() if names else []
    if not header or len(set(header)) < len(header):
        raise DataError(f"{file}, line 2: the names of the attributes, each once, are expected there; restore the file")
    rows = dict(_by_image(file, 2, 1 + len(header), _TRUTH))
    table = np.array([rows[path] for path in _covered(paths, rows, file)], dtype=bool)
    return {name: table[:, place] for place, name in enumerate(header)}


def _splits(root: Path, paths: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    file = _file(root, SPLITS)
    if file is None:
        return {}
    rows = dict(_by_image(file, 0, 2, _SPLIT))
    return {"split": np.array([rows[path][0] for path in _covered(paths, rows, file)])}


def _by_image(file: Path, skipped: int, width: int, meaning: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for where, words in _lines(file, skipped, width):
        try:
            yield words[0], [meaning[word] for word in words[1:]]
        except KeyError as error:
            raise DataError(f"{where}: {error} is none of {', '.join(meaning)}; correct the line") from error


def _covered(paths: tuple[str, ...], rows: dict[str, list[Any]], file: Path) -> tuple[str, ...]:
    missing = [path for path in paths if path not in rows]
    if missing:
        raise DataError(
            f"{file}: {counted(len(missing), 'image is', 'images are')} not in it, the first is {missing[0]}; "
            "restore the file"
        )
    return paths


def _lines(file: Path, skipped: int, width: int) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(_text(file)[skipped:], start=skipped + 1):
        words = line.split()
        if words and len(words) != width:
            raise DataError(f"{file}, line {number}: {len(words)} words instead of {width}; correct the line")
        if words:
            yield f"{file}, line {number}", words


def _text(file: Path) -> list[str]:
    try:
        return lines_of(file)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not a text in UTF-8; restore it from the distribution") from error


def _file(root: Path, name: str) -> Path | None:
    return next((root / folder / name for folder in _FOLDERS if (root / folder / name).is_file()), None)
