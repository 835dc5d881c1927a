"""Pair lists as benchmarks of the field distribute them: which images there are, which pairs, in which folds.

docs/howto/evaluation.md says against what each layout was checked.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from personae.data.readers.listing import Listing, files_below, lines_of, path_inside, stamp_below
from personae.errors import DataError
from personae.words import counted

FOLDS = 10
LFW = "pairs.txt"


class ListedPair(NamedTuple):
    left: str
    right: str
    same: bool


@dataclass(frozen=True)
class PairLayout:
    """How a benchmark is recognised in its folder, and read: pairs fold after fold, paths from that folder."""

    name: str
    file: str
    read: Callable[[Path, "PairLayout"], list[ListedPair]]
    identity: Callable[[PurePosixPath], str | None]
    """Who is on an image, by its path; None where that does not tell."""
    folders: tuple[str, ...] = ("",)
    """Where the images may be; the first that has the first of them counts."""


def find_layouts(root: Path) -> list[PairLayout]:
    """Those whose lists are in the folder, one of each name; none where it is LFW's."""
    found = {each.name: each for each in reversed(LAYOUTS) if (root / each.file).exists()}
    return [] if (root / LFW).is_file() else list(reversed(found.values()))


def find_layout(root: Path, name: str | None = None) -> PairLayout | None:
    """The layout of that name (None: the one) whose list is in the folder; None where there is none, or LFW's."""
    if name is None:
        found = find_layouts(root)
        if len(found) > 1:
            raise DataError(which_is_meant(root, found))
        return found[0] if found else None
    named = [each for each in LAYOUTS if each.name == name]
    there = [each for each in named if (root / each.file).exists()]
    if named and not there:
        files = " or ".join(each.file for each in named)
        raise DataError(f"{root}: no {files} in it; give the folder that {name} was unpacked to, or its .bin")
    return there[0] if there else None


def which_is_meant(root: Path, layouts: Sequence[PairLayout]) -> str:
    names = [layout.name for layout in layouts]
    each = " or ".join(f"{name}={root}" for name in names)
    return f'{root}: has the lists of {" and ".join(names)}; say which is meant: {each}, or layout = "{names[0]}"'


def read_several(root: Path, layouts: Sequence[PairLayout]) -> Listing:
    """The images of several benchmarks, to be looked at; to be used, one has to be named."""
    listings = [read_official(root, layout)[1] for layout in layouts]
    labels = {path: label for each in listings for path, label in zip(each.paths, each.labels, strict=True)}
    return Listing(
        source=root,
        paths=tuple(labels),
        labels=tuple(labels.values()),
        stamp=repr([each.stamp for each in listings]),
        opened=files_below(root, tuple(labels)),
        faults=(which_is_meant(root, layouts),),
    )


def read_official(root: Path, layout: PairLayout) -> tuple[list[ListedPair], Listing]:
    """The pairs, and the images in them. Where paths tell identities, and these agree with the pairs, they are used."""
    pairs = layout.read(root, layout)
    if not pairs:
        raise DataError(f"{root / layout.file}: lists no pairs; download it again")
    return pairs, list_images(root, pairs, layout.identity)


def identities_known(pairs: Sequence[ListedPair], identity: Callable[[PurePosixPath], str | None]) -> bool:
    named = [(identity(PurePosixPath(pair.left)), identity(PurePosixPath(pair.right)), pair.same) for pair in pairs]
    return all(None not in (left, right) and (left == right) == same for left, right, same in named)


def list_images(root: Path, pairs: Sequence[ListedPair], identity: Callable[[PurePosixPath], str | None]) -> Listing:
    """The images that occur in pairs, each once; where identities are not known, every image is one."""
    paths = tuple(dict.fromkeys(chain.from_iterable((pair.left, pair.right) for pair in pairs)))
    known = identities_known(pairs, identity)
    stamps = [_stamp(root, path) for path in paths]
    labels = tuple((identity(PurePosixPath(path)) if known else None) or path for path in paths)
    stamp, opened = repr((paths, stamps)), files_below(root, paths)
    return Listing(source=root, paths=paths, labels=labels, stamp=stamp, opened=opened)


def _stamp(root: Path, path: str) -> tuple[int, int]:
    """A file that is not there is told with the images that cannot be used: its face may not have been found."""
    if not (root / path).exists():
        return 0, 0
    return stamp_below(root, path, f"{root}, list of pairs")


def read_lines(file: Path) -> list[tuple[str, list[str]]]:
    """Where each line is, and its words; empty lines are left out."""
    try:
        lines = lines_of(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give the folder that has it") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not text in UTF-8; download it again") from error
    return [(f"{file} line {number}", line.split()) for number, line in enumerate(lines, 1) if line.strip()]


def by_kind(pairs: Sequence[ListedPair], source: Path) -> list[ListedPair]:
    """Ten folds: the first of them has the first tenth of the genuine pairs and of the impostor pairs, and so on.

    Lists that have all genuine pairs first are meant so; those that go fold by fold stay as they are.
    """
    kinds = [[pair for pair in pairs if pair.same == same] for same in (True, False)]
    if any(len(kind) % FOLDS for kind in kinds):
        raise DataError(
            f"{source}: {counted(len(kinds[0]), 'pair')} of one person and {len(kinds[1])} of two do not make {FOLDS} "
            "equal folds"
        )
    sizes = [len(kind) // FOLDS for kind in kinds]
    return [
        pair
        for fold in range(FOLDS)
        for kind, size in zip(kinds, sizes, strict=True)
        for pair in kind[fold * size : (fold + 1) * size]
    ]


def lfw_image(name: str, number: str, where: str) -> str:
    if not number.isdecimal():
        raise DataError(f"{where}: {number!r} is not the number of an image of {name}; correct the line")
    return f"{name}/{name}_{int(number):04}"


def _two_lines(root: Path, layout: PairLayout) -> list[ListedPair]:
    """`image label` twice a pair, the label being 0 for two persons: CALFW numbers its folds of genuine pairs."""
    lines = read_lines(root / layout.file)
    if len(lines) % 2:
        raise DataError(f"{root / layout.file}: {len(lines)} lines, and a pair takes two; download it again")
    pairs = []
    for (where, first), (_, second) in zip(lines[::2], lines[1::2], strict=True):
        if len(first) != 2 or len(second) != 2 or first[1] != second[1] or not first[1].isdecimal():
            raise DataError(f"{where}: a pair is two lines `image label` with one label; correct them")
        pairs.append(ListedPair(first[0], second[0], first[1] != "0"))
    return by_kind(_located(root, layout, pairs), root / layout.file)


def _two_paths(root: Path, layout: PairLayout) -> list[ListedPair]:
    """One path per line, two per pair; in one folder they are of one person."""
    lines = read_lines(root / layout.file)
    paths = []
    for where, words in lines:
        if len(words) != 1 or words[0].count("/") != 1:
            raise DataError(f"{where}: not a path `name/image`; correct the line")
        paths.append(words[0])
    if len(paths) % 2:
        raise DataError(f"{root / layout.file}: {len(paths)} lines, and a pair takes two; download it again")
    pairs = [
        ListedPair(left, right, left.split("/")[0] == right.split("/")[0])
        for left, right in zip(paths[::2], paths[1::2], strict=True)
    ]
    return by_kind(_located(root, layout, pairs), root / layout.file)


def _three_words(root: Path, layout: PairLayout) -> list[ListedPair]:
    """`image image label`, fold after fold."""
    pairs = []
    for where, words in read_lines(root / layout.file):
        if len(words) != 3 or words[2] not in ("0", "1", "-1"):
            raise DataError(f"{where}: not `image image label` with a label of 0 or 1; correct the line")
        pairs.append(ListedPair(words[0], words[1], words[2] == "1"))
    return _located(root, layout, pairs)


def _splits(root: Path, layout: PairLayout) -> list[ListedPair]:
    """CFP: a folder a fold with same.txt and diff.txt, of numbers that two other lists give paths to."""
    protocol = root / "Protocol"
    kinds = (_numbered(protocol, "Pair_list_F.txt"), _numbered(protocol, f"Pair_list_{layout.file[-1]}.txt"))
    folds = sorted(path for path in (root / layout.file).iterdir() if path.is_dir())
    if len(folds) != FOLDS:
        raise DataError(f"{root / layout.file}: {len(folds)} folders, where {FOLDS} folds are expected")
    return [pair for fold in folds for name in ("same", "diff") for pair in _cfp(fold, name, kinds)]


def _cfp(fold: Path, name: str, kinds: Sequence[dict[str, str]]) -> Iterator[ListedPair]:
    for where, words in read_lines(fold / f"{name}.txt"):
        numbers = [number.strip() for number in "".join(words).split(",")]
        if len(numbers) != 2 or any(number not in kind for number, kind in zip(numbers, kinds, strict=True)):
            raise DataError(f"{where}: not two numbers of the lists of images; correct the line")
        yield ListedPair(kinds[0][numbers[0]], kinds[1][numbers[1]], name == "same")


def _numbered(protocol: Path, name: str) -> dict[str, str]:
    paths = {}
    for where, words in read_lines(protocol / name):
        if len(words) != 2 or not words[0].isdecimal():
            raise DataError(f"{where}: not `number path`; correct the line")
        # Paths are from the folder of the list.
        paths[words[0]] = path_inside(posixpath.normpath(f"{protocol.name}/{words[1]}"), where)
    return paths


def _matlab(root: Path, layout: PairLayout) -> list[ListedPair]:
    """AgeDB's protocol: ten splits, each with a first and a second name of every pair, and labels 1 and -1."""
    file = root / layout.file
    try:
        pairs = []
        import scipy.io  # takes a while

        for split in scipy.io.loadmat(file, variable_names=["splits"])["splits"].ravel():
            names, labels = split.ravel()[0].tolist()[:2]
            for first, second, label in zip(*names, labels.ravel(), strict=True):
                pairs.append(ListedPair(f"{_innermost(first)}.jpg", f"{_innermost(second)}.jpg", int(label) == 1))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except Exception as error:  # damaged bytes can fail anywhere in the parser
        raise DataError(
            f"{file}: not AgeDB's protocol, ten splits of names and labels ({type(error).__name__}); download it again"
        ) from error
    return _located(root, layout, pairs)


def _innermost(entry: Any) -> str:
    """The first of the first of ...: MATLAB has cells and structs of one element around everything."""
    while isinstance(entry, np.ndarray | np.void):
        entry = entry.ravel()[0] if isinstance(entry, np.ndarray) else entry[0]
    return str(entry)


def _located(root: Path, layout: PairLayout, pairs: list[ListedPair]) -> list[ListedPair]:
    """Paths from the folder of the benchmark."""
    if not pairs:
        return pairs
    for folder in layout.folders:
        if any((root / folder / pair.left).is_file() for pair in pairs):
            inside = partial(_joined, folder, where=str(root / layout.file))
            return [ListedPair(inside(left), inside(right), same) for left, right, same in pairs]
    where = " or ".join(folder or "the folder itself" for folder in layout.folders)
    raise DataError(f"{root}: {pairs[0].left} is in the list of pairs, but neither in {where}; put the images there")


def _joined(folder: str, path: str, where: str) -> str:
    return path_inside(posixpath.join(folder, path), where)


def _name_before_number(path: PurePosixPath) -> str | None:
    return path.stem.rpartition("_")[0] or None


def _folder(path: PurePosixPath) -> str | None:
    return path.parent.name or None


def _cfp_person(path: PurePosixPath) -> str | None:
    return path.parent.parent.name or None


def _agedb_person(path: PurePosixPath) -> str | None:
    """Names are number, person, age and gender."""
    found = re.fullmatch(r"\d+_(.+)_\d+_[mf]", path.stem)
    return found[1] if found else None


def _nobody(path: PurePosixPath) -> str | None:  # noqa: ARG001 - the signature of `PairLayout.identity`
    return None


_ALIGNED = ("aligned images", "", "images")

LAYOUTS = (
    PairLayout("calfw", "pairs_CALFW.txt", _two_lines, _name_before_number, _ALIGNED),
    PairLayout("cplfw", "pairs_CPLFW.txt", _two_lines, _name_before_number, _ALIGNED),
    PairLayout("sllfw", "pair_SLLFW.txt", _two_paths, _folder, ("", "lfw")),
    PairLayout("cfpfp", "Protocol/Split/FP", _splits, _cfp_person),
    PairLayout("cfpff", "Protocol/Split/FF", _splits, _cfp_person),
    PairLayout("agedb30", "04_FINAL_protocol_30_years.mat", _matlab, _agedb_person, ("03_Protocol_Images", "")),
    PairLayout("agedb30", "agedb_30_pair.txt", _three_words, _nobody, ("", "agedb30_align_112")),
    PairLayout("cfpfp", "cfp_fp_pair.txt", _three_words, _nobody, ("", "CFP_FP_aligned_112")),
    PairLayout("vgg2fp", "vgg2_fp_pair.txt", _three_words, _nobody, ("", "images")),
)
