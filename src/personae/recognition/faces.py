"""Faces as a model takes them: of exactly its size and aligned, or with `align` brought there from photographs.

Without `align`, anything of another size is refused: a single image has no others beside it whose sizes could tell, as
they do where whole sets are opened (`personae.data.shapes`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from personae.data.aligned import align_face
from personae.data.faces import FaceSet
from personae.data.images import ImageError, decode_whole
from personae.data.levels import Level
from personae.data.packs import is_pack, open_pack
from personae.data.readers import read_listing
from personae.data.readers.folders import read_heap
from personae.data.readers.listing import Listing, read_file
from personae.errors import DataError
from personae.experiment.model import Model
from personae.progress import Notify, unheard
from personae.words import counted


class WrongSizeError(ImageError):
    """An image that is not an aligned face of the model's size."""


@dataclass(frozen=True)
class Portraits:
    """Images by the names of their files: faces as the model takes them, and why the others cannot be used."""

    faces: Mapping[str, Tensor]
    unusable: Mapping[str, ImageError] = field(default_factory=dict)

    def usable(self) -> Tensor:
        """uint8 [N, height, width, 3], RGB: all of them, or a DataError."""
        if self.unusable:
            raise DataError(complaint(self.unusable, len(self.faces) + len(self.unusable)))
        return torch.stack(list(self.faces.values()))


def complaint(unusable: Mapping[str, ImageError], images: int) -> str:
    """How many of these images cannot be used, the first of them, and what to do."""
    name, why = next(iter(unusable.items()))
    advice = "give an image of a face"
    if isinstance(why, WrongSizeError):
        advice = "give --align to have the face found and aligned, or do so first with `personae data align`"
    if images == 1:
        return f"{name}: cannot be used ({why}); {advice}"
    return f"{len(unusable)} of {counted(images, 'image')} cannot be used, the first is {name} ({why}); {advice}"


def read_face(path: str | Path, model: Model, *, align: bool = False) -> Tensor:
    """uint8 [height, width, 3], RGB; of a photograph, with `align`, the main face that is found in it."""
    return read_portraits([path], model, align=align).usable()[0]


def read_person(paths: Sequence[str | Path], model: Model, *, align: bool = False) -> Tensor:
    """uint8 [N, height, width, 3]: the images at these paths, and those in folders among them."""
    return read_portraits(paths, model, align=align).usable()


def read_portraits(
    paths: Sequence[str | Path], model: Model, *, align: bool = False, notify: Notify = unheard
) -> Portraits:
    """The same with the images that cannot be used; `notify` hears what in a folder is not read."""
    files = [file for path in map(Path, paths) for file in (_inside(path, notify) if path.is_dir() else [path])]

    def face(file: Path) -> Tensor:
        return _face(read_file(file), model, align=align, upright=True)

    return _portraits({str(file): partial(face, file) for file in files})


def read_people(
    path: Path,
    model: Model,
    *,
    align: bool = False,
    identity_level: Level | None = None,
    notify: Notify = unheard,
) -> Iterator[tuple[str, Portraits]]:
    """Everybody in a set of faces (a folder per person, a zip, a list, a pack), one after the other, with all images.

    That the set is none is said at once, and `notify` hears what the reader remarks on it. `identity_level`: of folders
    in folders, those that are people.
    """
    if is_pack(path):
        if align:
            raise DataError(f"{path}: a pack holds faces at one size; align the photographs that it was made of")
        return _packed(open_pack(path), path, model)
    listing = read_listing(path, identity_level=identity_level)
    for remark in listing.remarks:
        notify(remark)
    return _listed(listing, model, align=align)


def _portraits(images: Mapping[str, Callable[[], Tensor]]) -> Portraits:
    faces: dict[str, Tensor] = {}
    unusable: dict[str, ImageError] = {}
    for name, read in images.items():
        try:
            faces[name] = read()
        except ImageError as why:
            unusable[name] = why
    return Portraits(faces, unusable)


def _packed(faces: FaceSet, path: Path, model: Model) -> Iterator[tuple[str, Portraits]]:
    if wrong := _wrong_size(faces.size, model):
        raise DataError(f"{path}: {wrong}; pack them at that size")
    return (
        (name, Portraits(dict(zip(_names(faces, path, rows), torch.from_numpy(faces.images(rows)), strict=True))))
        for code, name in enumerate(faces.identities)
        for rows in [np.flatnonzero(faces.identity == code)]
    )


def _names(faces: FaceSet, path: Path, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    return [f"{path}: {name}" for name in faces.columns["path"][rows].tolist()]


def _listed(listing: Listing, model: Model, *, align: bool) -> Iterator[tuple[str, Portraits]]:
    positions = defaultdict(list)
    for position, name in enumerate(listing.labels):
        positions[name].append(position)
    with listing.opened() as fetch:

        def face(position: int) -> Tensor:
            return _face(fetch(position), model, align=align, upright=listing.upright)

        for name, chosen in positions.items():
            files = {f"{listing.source}: {listing.paths[position]}": partial(face, position) for position in chosen}
            yield name, _portraits(files)


def _inside(folder: Path, notify: Notify) -> list[Path]:
    """All images at or below a person's folder."""
    listing = read_heap(folder)
    if listing.faults:
        raise DataError(listing.faults[0])
    for remark in listing.remarks:
        notify(remark)
    return [folder / path for path in listing.paths]


def _face(encoded: bytes, model: Model, *, align: bool, upright: bool) -> Tensor:
    """`upright`: whether a photograph is turned as its camera says before a face is looked for."""
    pixels = decode_whole(encoded, upright=align and upright)
    if align:
        pixels = align_face(pixels, model.height, model.width)
    if wrong := _wrong_size(pixels.shape[:2], model):
        raise WrongSizeError(wrong)
    return torch.from_numpy(np.array(pixels))


def _wrong_size(size: Sequence[int], model: Model) -> str | None:
    height, width = size
    if (height, width) == (model.height, model.width):
        return None
    return f"{width}x{height} pixels, and the model takes aligned faces of {model.width}x{model.height}"
