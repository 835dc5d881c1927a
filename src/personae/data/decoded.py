"""Faces from files as a face set: decoded once, into the cache."""

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np

from personae.data import haar
from personae.data.faces import FaceSet
from personae.data.images import ImageError, decode
from personae.data.pixels import Append, Filled, PixelStore, Recipe, cached_pixels, default_cache
from personae.data.readers import read_listing
from personae.data.readers.listing import Listing, in_natural_order
from personae.errors import ConfigError, DataError
from personae.progress import Progress, silent

Crop = Literal["haar"]


def open_faces(
    path: Path,
    *,
    height: int,
    width: int,
    cache: Path | None = None,
    progress: Progress = silent,
    skip_unreadable: bool = False,
    layout: str | None = None,
    crop: Crop | None = None,
    unlabelled: bool = False,
) -> FaceSet:
    """The faces at `path` (a folder per identity, a zip with labels, a text list, a benchmark), at one size.

    `layout` names the benchmark, where a folder has the lists of several. `crop`: "haar" cuts the face out of each
    photograph first; one in which none is found counts as unreadable. `unlabelled`: a folder of images is fine, too;
    all count as one identity.
    """
    if height < 1 or width < 1:
        raise ConfigError(f"images of {width} x {height} pixels were asked for; give a positive height and width")
    path = Path(path).expanduser().absolute()
    if crop is not None:
        haar.require()
    listing = read_listing(path, layout, unlabelled=unlabelled)
    recipe = Recipe(
        name=path.stem,
        source=str(path) if crop is None else f"{path} cropped by {crop}",
        state=repr((listing.stamp, listing.paths)),
        count=len(listing.paths),
        height=height,
        width=width,
    )
    store = cached_pixels(
        cache or default_cache(), recipe, lambda append: _decode_all(listing, recipe, append, progress, crop)
    )
    _complain(listing, store, skip_unreadable)
    missing = {position for position, _ in store.missing}
    kept = np.array([position for position in range(len(listing.paths)) if position not in missing])
    identities = in_natural_order({listing.labels[position] for position in kept})
    code = {name: number for number, name in enumerate(identities)}
    columns = {name: values[kept] for name, values in listing.columns.items()}
    return FaceSet(
        name=path.stem,
        identities=tuple(identities),
        identity=np.array([code[listing.labels[position]] for position in kept]),
        columns=columns | {"path": np.array(listing.paths)[kept]},
        pixels=store,
        stored=np.arange(len(kept)),
        unreadable=len(missing),
    )


def _decode_all(listing: Listing, recipe: Recipe, append: Append, progress: Progress, crop: Crop | None) -> Filled:
    """Every image that can be decoded, and a note of every one that cannot."""
    # Of the encoded bytes, not of the pixels: decoders of different machines may differ in the last bit.
    digest = hashlib.sha256(b"" if crop is None else crop.encode())
    cut = None if crop is None else haar.crop_face
    missing: list[tuple[int, str]] = []
    with listing.opened() as fetch, progress(f"decoding {recipe.name}", len(listing.paths), "images") as advance:
        for position in range(len(listing.paths)):
            try:
                encoded = fetch(position)
                digest.update(hashlib.sha256(encoded).digest())
                append(decode(encoded, recipe.height, recipe.width, upright=listing.upright, crop=cut)[None])
            except ImageError as why:
                missing.append((position, str(why)))
            advance(1)
    return Filled(digest.hexdigest(), tuple(missing))


def _complain(listing: Listing, store: PixelStore, skip_unreadable: bool) -> None:
    if not store.missing or (skip_unreadable and store.count):
        return
    position, why = store.missing[0]
    advice = "repair or remove them" + (", or allow to skip unreadable images" if store.count else "")
    raise DataError(
        f"{listing.source}: {len(store.missing)} of {len(listing.paths)} images cannot be used, "
        f"the first is {listing.paths[position]} ({why}); {advice}"
    )
