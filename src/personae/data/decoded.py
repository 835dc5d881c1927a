"""Faces from files as a face set: decoded once, into the cache."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from personae.data import haar
from personae.data.faces import UNLABELLED, FaceSet
from personae.data.images import ImageError, decode
from personae.data.packs import Table, is_pack, open_pack, write_pack
from personae.data.pairsets import lfw_pairs
from personae.data.pixels import Append, Filled, Recipe, cached_pixels, default_cache
from personae.data.readers import read_listing
from personae.data.readers.listing import Listing, in_natural_order
from personae.data.unlabelled import without_labels
from personae.errors import ConfigError, DataError, Unreadable
from personae.progress import Progress, silent

Crop = Literal["haar"]


def open_faces(
    path: str | Path,
    *,
    height: int,
    width: int,
    cache: str | Path | None = None,
    progress: Progress = silent,
    skip_unreadable: bool = False,
    layout: str | None = None,
    crop: Crop | None = None,
    unlabelled: bool = False,
) -> FaceSet:
    """The faces at `path`, in any layout that is read (docs/data.md) or packed, at one size.

    `layout` names the benchmark, where a folder has the lists of several. `crop`: "haar" cuts the face out of each
    photograph first; one in which none is found counts as unreadable. `unlabelled`: any folder, zip or list of images
    will do, and labels that are there all the same are not used.
    """
    path, listing = _listed(path, height, width, layout, crop, unlabelled)
    if listing is None:
        faces = _packed(path, height, width, unlabelled)
        return without_labels(faces) if unlabelled else faces
    recipe = Recipe(
        name=path.stem,
        source=str(path) if crop is None else f"{path} cropped by {crop}",
        state=repr((listing.stamp, listing.paths)),
        count=len(listing.paths),
        height=height,
        width=width,
    )
    store = cached_pixels(
        Path(cache or default_cache()),
        recipe,
        lambda append: _decode_all(listing, height, width, append, progress, crop),
    )
    _complain(listing, store.missing, skip_unreadable)
    table = _table(listing, Filled(store.digest, store.missing))
    faces = FaceSet(
        name=path.stem,
        identities=table.identities,
        identity=table.identity,
        columns=table.columns,
        pixels=store,
        stored=np.arange(store.count),
        unreadable=table.unreadable,
    )
    return without_labels(faces) if unlabelled else faces


def pack_faces(
    path: Path,
    file: Path,
    *,
    height: int,
    width: int,
    progress: Progress = silent,
    skip_unreadable: bool = False,
    layout: str | None = None,
    crop: Crop | None = None,
    unlabelled: bool = False,
) -> FaceSet:
    """Decode the faces at `path` into one file that maps into memory and opens like any other faces."""
    path, listing = _listed(path, height, width, layout, crop, unlabelled)
    if listing is None:
        raise DataError(f"{path}: this is a pack already")
    if file.exists():
        raise ConfigError(f"{file}: is there already; remove it, or choose another name")

    def fill(append: Append) -> Table:
        filled = _decode_all(listing, height, width, append, progress, crop)
        _complain(listing, filled.missing, skip_unreadable)
        return replace(_table(listing, filled), pairs=lfw_pairs(path))

    return write_pack(file, path.stem, height, width, len(listing.columns) + 1, fill)


def _listed(
    path: str | Path, height: int, width: int, layout: str | None, crop: Crop | None, unlabelled: bool
) -> tuple[Path, Listing | None]:
    """The whole path, and what it declares; None for a pack, which needs no reader."""
    if height < 1 or width < 1:
        raise ConfigError(f"images of {width} x {height} pixels were asked for; give a positive height and width")
    path = Path(path).expanduser().absolute()
    if is_pack(path):
        if crop is not None:
            raise ConfigError(f"{path}: a pack holds faces as they are; crop them when they are packed")
        return path, None
    if crop is not None:
        haar.require()
    return path, read_listing(path, layout, unlabelled=unlabelled)


def _packed(path: Path, height: int, width: int, unlabelled: bool) -> FaceSet:
    faces = open_pack(path)
    if not unlabelled and not faces.labelled.all():
        raise DataError(f"{path}: its faces have no labels; say unlabelled = true (on the command line: --unlabelled)")
    if faces.size != (height, width):
        there, asked = (f"{size[1]} x {size[0]}" for size in (faces.size, (height, width)))
        raise DataError(f"{path}: its images are {there}, and {asked} are asked for; pack them at that size")
    return faces


def _table(listing: Listing, filled: Filled) -> Table:
    missing = {position for position, _ in filled.missing}
    kept = np.array([position for position in range(len(listing.paths)) if position not in missing], dtype=np.int64)
    labels = listing.labels or None
    identities = in_natural_order({labels[position] for position in kept}) if labels else []
    code = {name: number for number, name in enumerate(identities)}
    columns = {name: values[kept] for name, values in listing.columns.items()}
    return Table(
        identities=tuple(identities),
        identity=np.array([code[labels[position]] if labels else UNLABELLED for position in kept], dtype=np.int64),
        columns=columns | {"path": np.array(listing.paths)[kept]},
        digest=filled.digest,
        unreadable=len(missing),
    )


def _decode_all(
    listing: Listing, height: int, width: int, append: Append, progress: Progress, crop: Crop | None
) -> Filled:
    """Every image that can be decoded, and a note of every one that cannot."""
    # Of the encoded bytes, not of the pixels: decoders of different machines may differ in the last bit.
    digest = hashlib.sha256(b"" if crop is None else crop.encode())
    cut = None if crop is None else haar.crop_face
    missing: list[tuple[int, str]] = []
    described = f"decoding {listing.source.stem}"
    with listing.opened() as fetch, progress(described, len(listing.paths), "images") as advance:
        for position in range(len(listing.paths)):
            try:
                encoded = fetch(position)
                digest.update(hashlib.sha256(encoded).digest())
                append(decode(encoded, height, width, upright=listing.upright, crop=cut)[None])
            except ImageError as why:
                missing.append((position, str(why)))
            advance(1)
    return Filled(digest.hexdigest(), tuple(missing))


def _complain(listing: Listing, missing: tuple[tuple[int, str], ...], skip_unreadable: bool) -> None:
    some_left = len(missing) < len(listing.paths)
    if not missing or (skip_unreadable and some_left):
        return
    position, why = missing[0]
    advice = "repair or remove them" + (", or skip them where that is an option" if some_left else "")
    raise Unreadable(
        f"{listing.source}: {len(missing)} of {len(listing.paths)} images cannot be used, "
        f"the first is {listing.paths[position]} ({why}); {advice}"
    )
