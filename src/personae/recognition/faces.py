"""Faces as a model takes them: of exactly its size and aligned, or with `align` brought there from photographs.

Without `align`, anything of another size is refused.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from personae.data.aligned import align_face
from personae.data.faces import FaceSet
from personae.data.images import SUFFIXES, ImageError, decode_whole
from personae.data.packs import is_pack, open_pack
from personae.data.readers import read_listing
from personae.data.readers.listing import Fetch, Listing, read_file
from personae.errors import DataError
from personae.experiment.assess import Model


def read_face(path: str | Path, model: Model, *, align: bool = False) -> Tensor:
    """uint8 [height, width, 3], RGB; of a photograph, with `align`, the main face that is found in it."""
    try:
        return _face(read_file(Path(path)), str(path), model, align=align, upright=True)
    except ImageError as why:
        raise DataError(f"{path}: cannot be used ({why}); give an image of a face") from why


def read_person(paths: Sequence[str | Path], model: Model, *, align: bool = False) -> Tensor:
    """uint8 [N, height, width, 3]: the images at these paths, and those in folders among them."""
    files = [file for path in map(Path, paths) for file in (_inside(path) if path.is_dir() else [path])]
    return torch.stack([read_face(file, model, align=align) for file in files])


def read_people(path: Path, model: Model, *, align: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Everybody in a set of faces (a folder per person, a zip, a list, a pack), one after the other, with all images.

    That the set is none is said at once, that an image cannot be used when it is its turn.
    """
    if is_pack(path):
        if align:
            raise DataError(f"{path}: a pack holds faces at one size; align the photographs that it was made of")
        return _packed(open_pack(path), path, model)
    return _listed(read_listing(path), model, align=align)


def _packed(faces: FaceSet, path: Path, model: Model) -> Iterator[tuple[str, Tensor]]:
    _check_size(faces.size, str(path), model, "pack them at that size")
    return (
        (name, torch.from_numpy(faces.images(np.flatnonzero(faces.identity == code))))
        for code, name in enumerate(faces.identities)
    )


def _listed(listing: Listing, model: Model, *, align: bool) -> Iterator[tuple[str, Tensor]]:
    positions = defaultdict(list)
    for position, name in enumerate(listing.labels):
        positions[name].append(position)
    with listing.opened() as fetch:
        for name, chosen in positions.items():
            yield name, torch.stack([_fetched(listing, fetch, each, model, align=align) for each in chosen])


def _inside(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{folder}: no images in it ({', '.join(sorted(SUFFIXES))})")
    return found


def _fetched(listing: Listing, fetch: Fetch, position: int, model: Model, *, align: bool) -> Tensor:
    source, name = listing.source, listing.paths[position]
    try:
        return _face(fetch(position), f"{source}: {name}", model, align=align, upright=listing.upright)
    except ImageError as why:
        raise DataError(f"{source}: {name} cannot be used ({why}); repair or remove it") from why


def _face(encoded: bytes, name: str, model: Model, *, align: bool, upright: bool) -> Tensor:
    """`upright`: whether a photograph is turned as its camera says before a face is looked for."""
    pixels = decode_whole(encoded, upright=align and upright)
    if align:
        pixels = align_face(pixels, model.height, model.width)
    _check_size(
        pixels.shape[:2],
        name,
        model,
        "give --align to have the face found and aligned, or do so first with `personae data align`",
    )
    return torch.from_numpy(np.array(pixels))


def _check_size(size: Sequence[int], name: str, model: Model, advice: str) -> None:
    height, width = size
    if (height, width) != (model.height, model.width):
        raise DataError(
            f"{name}: {width}x{height} pixels, and the model takes aligned faces of {model.width}x{model.height}; "
            f"{advice}"
        )
