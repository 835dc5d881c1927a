"""A folder per identity, ROOT/<identity>/<image>, as of LFW or CASIA-WebFace; or several levels of folders.

A first level that is called like splits is one (VGGFace2 has `train` and `test`). Below it, in
ROOT/<first>/<last>/<image>, the first level may be people and the last parts of what there is of them, or the first
domains with people of their own (BUPT-Balancedface and RFW have four groups of people): see `levels`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.data.images import SUFFIXES, is_image
from personae.data.levels import Decision, Folder, Level, decide
from personae.data.readers.listing import OR_UNLABELLED, SPLITS, Listing, files_below, link_leaves
from personae.data.readers.official import LFW
from personae.data.readers.tree import Tree, left_out, walk
from personae.errors import DataError
from personae.words import as_text

_SHOWN = 3


def read_folders(root: Path, identity_level: Level | None = None) -> Listing:
    tree = walk(root)
    places = {path: PurePosixPath(path).parent.parts for path in tree.images}
    firsts = {place[0] for place in places.values() if place}
    split = firsts <= SPLITS.keys() and any(len(place) > 1 for place in places.values())
    folders = {path: tuple(map(as_text, place[split:])) for path, place in places.items() if place[split:]}
    decision = decide(set(folders.values()), identity_level)
    faults = [*_links(tree), *_strays(tree, folders), *[f"{root}: {decision.why}"] * decision.doubtful]
    if not folders:
        raise DataError(faults[0] if faults else _nothing(tree))
    splits = [places[path][0] for path in folders] if split else []
    return Listing(
        source=root,
        paths=tuple(folders),
        labels=tuple(_label(folder, decision.level) for folder in folders.values()),
        stamp=_stamp(tree, folders),
        opened=files_below(root, tuple(folders)),
        columns=_splits(splits) | _domains(list(folders.values()), decision.level),
        upright=True,
        remarks=tuple(_remarks(tree, decision)),
        faults=tuple(faults),
    )


def read_heap(root: Path) -> Listing:
    """All images at or below the root, however deep, without labels."""
    tree = walk(root)
    faults = tuple(_links(tree))
    if not tree.images:
        raise DataError(faults[0] if faults else _nothing(tree))
    return Listing(
        source=root,
        paths=tuple(tree.images),
        labels=(),
        stamp=_stamp(tree, tree.images),
        opened=files_below(root, tuple(tree.images)),
        upright=True,
        remarks=tuple(_remarks(tree)),
        faults=faults,
    )


def is_flat(path: Path) -> bool:
    """Whether it is a folder with images right below it, which then are of nobody known."""
    return path.is_dir() and any(is_image(entry.name) for entry in _visible(path))


def has_images_alone(path: Path) -> bool:
    """Whether it is such a folder, and there are no folders in it."""
    return is_flat(path) and not any(entry.is_dir() for entry in _visible(path))


def _visible(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _stamp(tree: Tree, paths: Iterable[str]) -> str:
    return repr([(path, tree.images[path]) for path in paths])


def _label(folder: Folder, level: Level) -> str:
    return folder[0] if level == "first" else "/".join(folder)


def _splits(firsts: Sequence[str]) -> dict[str, NDArray[Any]]:
    return {"split": np.array([SPLITS[first] for first in firsts])} if firsts else {}


def _domains(folders: Sequence[Folder], level: Level) -> dict[str, NDArray[Any]]:
    """The first level, where that is not the people."""
    if level == "first" or all(len(folder) < 2 for folder in folders):
        return {}
    return {"domain": np.array([folder[0] for folder in folders])}


def _links(tree: Tree) -> Iterator[str]:
    for path in tree.outside:
        yield link_leaves(tree.root / path, tree.root, str(tree.root))


def _strays(tree: Tree, folders: Collection[str]) -> Iterator[str]:
    if stray := [tree.root / path for path in tree.images if path not in folders]:
        others = f" (as are {len(stray) - 1} more)" if len(stray) > 1 else ""
        move = f"move it to {stray[0].parent / '<identity>'}/"
        yield f"{stray[0]}: an image outside of any identity's folder{others}; {move}, {OR_UNLABELLED}"


def _remarks(tree: Tree, decision: Decision | None = None) -> Iterator[str]:
    """What is good to know, and keeps nobody from using the faces."""
    if decision and decision.why and not decision.doubtful:
        yield f"{tree.root}: {decision.why}"
    for remark in left_out(path for path in tree.others if path != LFW):
        yield f"{tree.root}: {remark}"
    if count := len(tree.empty):
        some = ", ".join(tree.empty[:_SHOWN]) + (" ..." if count > _SHOWN else "")
        told = "1 folder has no images and is" if count == 1 else f"{count} folders have no images and are"
        yield f"{tree.root}: {told} ignored: {some}"


def _nothing(tree: Tree) -> str:
    others = "".join(f"; {told}" for told in left_out(tree.others))
    known = ", ".join(sorted(SUFFIXES))
    return (
        f"{tree.root}: no images ({known}) at or below it{others}; give a folder with one folder of images per identity"
    )
