"""MegaFace as it is passed on for evaluation: people to look for, and up to a million distractors."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from personae.data.readers.listing import path_inside
from personae.data.readers.official import read_lines
from personae.data.samples import FaceSamples
from personae.data.streamed import StreamedStore, streamed
from personae.errors import DataError

PROBES, DISTRACTORS = "facescrub", "megaface"


@dataclass(frozen=True, eq=False)
class MegaFace:
    """The probes, and either the distractors' images or, of the same model, their vectors [N, D]."""

    probes: FaceSamples
    distractors: FaceSamples | None
    vectors: NDArray[np.float32] | None


def open_megaface(root: Path, height: int, width: int, *, as_they_are: bool = False) -> MegaFace:
    """`facescrub_lst` and `megaface_lst` list images, one path per line, below `facescrub_images` and
    `megaface_images`; the folder of a probe is its person. `megaface.npy` in place of the latter list holds
    vectors of the distractors."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the one with {PROBES}_lst")
    images = partial(_images, root, height=height, width=width, as_they_are=as_they_are)
    probes = images(PROBES)
    file = root / f"{DISTRACTORS}.npy"
    if not file.exists():
        return MegaFace(probes, images(DISTRACTORS), None)
    try:
        vectors = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: holds no array ({error}); save one with numpy.save") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise DataError(f"{file}: {vectors.dtype} {list(vectors.shape)}; it should be float32 with a row a distractor")
    return MegaFace(probes, None, vectors)


def _images(root: Path, name: str, *, height: int, width: int, as_they_are: bool) -> FaceSamples:
    file = root / f"{name}_lst"
    paths = []
    for where, words in read_lines(file):
        if len(words) != 1:
            raise DataError(f"{where}: not a path; write one a line")
        paths.append(path_inside(words[0], where))
    if not paths:
        raise DataError(f"{file}: lists no images; download it again")
    people = np.unique([PurePosixPath(path).parent.name for path in paths], return_inverse=True)[1]
    store = StreamedStore(root / f"{name}_images", tuple(paths), height, width, as_they_are=as_they_are)
    return streamed(store, people if name == PROBES else np.arange(len(paths)))
