"""Photographs as a model takes them: faces of exactly its size, aligned already; anything else is refused."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from personae.data.images import SUFFIXES, ImageError, decode_whole
from personae.data.readers import read_listing
from personae.data.readers.listing import Fetch, read_file
from personae.errors import DataError
from personae.experiment.assess import Model


def read_face(path: Path, model: Model) -> Tensor:
    """uint8 [height, width, 3], RGB."""
    try:
        return _fitting(read_file(path), str(path), model)
    except ImageError as why:
        raise DataError(f"{path}: cannot be used ({why}); give an image of a face") from why


def read_person(paths: Sequence[Path], model: Model) -> Tensor:
    """uint8 [N, height, width, 3]: the images at these paths, and those in folders among them."""
    files = [file for path in paths for file in (_inside(path) if path.is_dir() else [path])]
    return torch.stack([read_face(file, model) for file in files])


def read_people(path: Path, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Everybody in a set of faces (a folder per person, a zip, a list), one after the other, with all their images."""
    listing = read_listing(path)
    positions = defaultdict(list)
    for position, name in enumerate(listing.labels):
        positions[name].append(position)
    with listing.opened() as fetch:
        for name, chosen in positions.items():
            yield name, torch.stack([_fetched(fetch, each, listing.paths[each], path, model) for each in chosen])


def _inside(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{folder}: no images in it ({', '.join(sorted(SUFFIXES))})")
    return found


def _fetched(fetch: Fetch, position: int, name: str, source: Path, model: Model) -> Tensor:
    try:
        return _fitting(fetch(position), f"{source}: {name}", model)
    except ImageError as why:
        raise DataError(f"{source}: {name} cannot be used ({why}); repair or remove it") from why


def _fitting(encoded: bytes, name: str, model: Model) -> Tensor:
    pixels = decode_whole(encoded)
    height, width, _ = pixels.shape
    if (height, width) != (model.height, model.width):
        raise DataError(
            f"{name}: {width}x{height} pixels, and the model takes aligned faces of {model.width}x{model.height}; "
            "align it first, as `personae data align` does"
        )
    return torch.from_numpy(np.array(pixels))
