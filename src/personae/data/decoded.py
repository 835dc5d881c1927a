"""Faces from files as a face set: decoded once, into the cache."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from personae.data.decoding import UNREADABLE, Decoding
from personae.data.faces import UNLABELLED, FaceSet
from personae.data.handling import Crop, Missed
from personae.data.levels import Level
from personae.data.packs import Table, is_pack, open_pack, write_pack
from personae.data.pairsets import lfw_pairs
from personae.data.pixels import Append, Filled, Recipe, cached_pixels, default_cache
from personae.data.readers import read_listing
from personae.data.readers.listing import Listing, in_natural_order, text_column
from personae.data.unlabelled import without_labels
from personae.errors import ConfigError, DataError
from personae.progress import Notify, Progress, silent, unheard
from personae.words import as_text


def open_faces(
    path: str | Path,
    *,
    height: int,
    width: int,
    cache: str | Path | None = None,
    progress: Progress = silent,
    notify: Notify = unheard,
    layout: str | None = None,
    unlabelled: bool = False,
    skip_unreadable: bool = False,
    crop: Crop | None = None,
    missed: Missed | None = None,
    as_they_are: bool = False,
    identity_level: Level | None = None,
) -> FaceSet:
    """The faces at `path`, in any layout that is read (docs/howto/data.md) or packed, at one size.

    `layout` names the benchmark, where a folder has the lists of several. `unlabelled`: any folder, zip or list of
    images will do, and labels that are there all the same are not used. `crop` cuts the face out of each photograph:
    "align" finds it and brings it to the template, "haar" is a plain box. One in which no face is found counts as
    unreadable, unless `missed` says to "skip" such ones or to take a plain "crop" around the centre. `skip_unreadable`
    leaves out what cannot be used; a list of these is in the cache, and `notify` is told where. Images that cannot be
    aligned faces by their sizes are refused, unless they are cropped or taken `as_they_are`. `identity_level`: of
    folders in folders, those that are people.
    """
    path, listing = _listed(path, height, width, layout, crop, unlabelled, identity_level, notify)
    if listing is None:
        faces = _packed(path, height, width, unlabelled)
        return without_labels(faces) if unlabelled else faces
    decoding = Decoding(listing, height, width, skip_unreadable, crop, missed, as_they_are)
    how = [f"as {layout}"] * bool(layout) + ["unlabelled"] * unlabelled + [f"cropped by {decoding.cut}"] * bool(crop)
    recipe = Recipe(
        name=path.stem,
        source=" ".join([str(path), *how]),
        state=repr((listing.stamp, listing.paths, listing.upright)),
        count=len(listing.paths),
        height=height,
        width=width,
    )
    store = cached_pixels(Path(cache or default_cache()), recipe, partial(decoding.fill, progress=progress))
    decoding.check(store.filled, store.path.with_name(UNREADABLE), notify)
    table = _table(listing, store.filled)
    faces = FaceSet(
        name=path.stem,
        identities=table.identities,
        identity=table.identity,
        columns=table.columns,
        pixels=store,
        stored=np.arange(store.count),
        unreadable=table.unreadable,
        plain=store.filled.plain,
    )
    return without_labels(faces) if unlabelled else faces


def pack_faces(
    path: Path,
    file: Path,
    *,
    height: int,
    width: int,
    progress: Progress = silent,
    notify: Notify = unheard,
    layout: str | None = None,
    skip_unreadable: bool = False,
    crop: Crop | None = None,
    missed: Missed | None = None,
    as_they_are: bool = False,
    identity_level: Level | None = None,
    unlabelled: bool = False,
) -> FaceSet:
    """Decode the faces at `path` into one file that maps into memory and opens like any other faces.

    What is left out is listed beside it.
    """
    path, listing = _listed(path, height, width, layout, crop, unlabelled, identity_level, notify)
    if listing is None:
        raise DataError(f"{path}: this is a pack already")
    if file.exists():
        raise ConfigError(f"{file}: is there already; remove it, or choose another name")

    decoding = Decoding(listing, height, width, skip_unreadable, crop, missed, as_they_are)

    def fill(append: Append) -> Table:
        filled = decoding.fill(append, progress)
        decoding.check(filled, file.with_suffix(f".{UNREADABLE}"), notify)
        return replace(_table(listing, filled), pairs=lfw_pairs(path))

    return write_pack(file, path.stem, height, width, len(listing.columns) + 1, fill)


def _listed(
    path: str | Path,
    height: int,
    width: int,
    layout: str | None,
    crop: Crop | None,
    unlabelled: bool,
    identity_level: Level | None,
    notify: Notify,
) -> tuple[Path, Listing | None]:
    """The whole path, and what it declares; None for a pack, which needs no reader."""
    if height < 1 or width < 1:
        raise ConfigError(f"images of {width} x {height} pixels were asked for; give a positive height and width")
    path = Path(path).expanduser().absolute()
    if is_pack(path):
        if crop is not None:
            raise ConfigError(f"{path}: a pack holds faces as they are; crop them when they are packed")
        return path, None
    listing = read_listing(path, layout, unlabelled=unlabelled, identity_level=identity_level)
    for remark in listing.remarks:
        notify(remark)
    return path, listing


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
    paths = text_column([*map(as_text, listing.paths)], f"{listing.source}: the list of paths")
    return Table(
        identities=tuple(identities),
        identity=np.array([code[labels[position]] if labels else UNLABELLED for position in kept], dtype=np.int64),
        columns=columns | {"path": paths[kept]},
        digest=filled.digest,
        unreadable=len(missing),
    )
