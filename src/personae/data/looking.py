"""A look into the images of a set, one after the other: what their files say, their digests and small versions."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.images import Header, ImageError, decode, header_of
from personae.data.packs import check_pack, open_pack
from personae.data.pixels import Pixels
from personae.data.readers.listing import Listing
from personae.progress import Progress

_THUMBNAIL = 16

Look = Callable[[Callable[[int], bytes], int], tuple[bytes, Header, Pixels]]


@dataclass(frozen=True, eq=False)
class Source:
    """A listing, and how one of its images is looked at: its digest, its header and a small version of it."""

    listing: Listing
    look: Look


@dataclass(frozen=True, eq=False)
class Seen:
    """What was found in the images that could be decoded, each with its place in the listing."""

    listing: Listing
    looked_at: int
    positions: list[int]
    digests: list[bytes]
    headers: list[Header]
    thumbnails: NDArray[np.float32]
    unreadable: list[tuple[str, str]]

    @property
    def people(self) -> list[str]:
        """Who is on each; of faces without labels, nobody."""
        return [self.listing.labels[position] if self.listing.labels else "" for position in self.positions]

    def path(self, row: int) -> str:
        return self.listing.paths[self.positions[row]]


def listed(listing: Listing) -> Source:
    def look(fetch: Callable[[int], bytes], position: int) -> tuple[bytes, Header, Pixels]:
        encoded = fetch(position)
        small = decode(encoded, _THUMBNAIL, _THUMBNAIL, upright=listing.upright)
        return _digest(encoded), header_of(encoded), small

    return Source(listing, look)


def packed(path: Path, progress: Progress) -> Source:
    """Every byte of a pack is held against its digest before."""
    check_pack(path, progress)
    faces = open_pack(path)
    header = Header("pixels", "RGB", *faces.size, turned=False)

    @contextmanager
    def opened() -> Iterator[Callable[[int], bytes]]:
        yield lambda position: faces.images(np.array([position])).tobytes()

    def look(fetch: Callable[[int], bytes], position: int) -> tuple[bytes, Header, Pixels]:
        pixels = faces.images(np.array([position]))[0]
        rows, columns = (np.linspace(0, side, _THUMBNAIL, endpoint=False).astype(int) for side in faces.size)
        summed = np.add.reduceat(np.add.reduceat(pixels.astype(np.float64), rows, axis=0), columns, axis=1)
        return _digest(fetch(position)), header, summed / (pixels.size / summed.size)

    listing = Listing(
        source=path,
        paths=tuple(map(str, faces.columns["path"].tolist())),
        labels=tuple(faces.identities[code] for code in faces.identity) if faces.labelled.all() else (),
        stamp="",
        opened=opened,
        columns={name: values for name, values in faces.columns.items() if name != "path"},
    )
    return Source(listing, look)


def look_into(source: Source, sample: int | None, progress: Progress) -> Seen:
    """All images, or so many, evenly spread."""
    listing = source.listing
    wanted = len(listing.paths) if sample is None else min(len(listing.paths), sample)
    chosen = np.linspace(0, len(listing.paths), wanted, endpoint=False).astype(np.int64)
    positions: list[int] = []
    digests: list[bytes] = []
    headers: list[Header] = []
    unreadable: list[tuple[str, str]] = []
    thumbnails = np.empty((wanted, _THUMBNAIL**2), dtype=np.float32)
    with listing.opened() as fetch, progress("looking at images", wanted, "images") as advance:
        for position in chosen.tolist():
            try:
                digest, header, small = source.look(fetch, position)
                thumbnails[len(positions)] = small.mean(axis=2, dtype=np.float32).ravel()
                positions.append(position)
                digests.append(digest)
                headers.append(header)
            except ImageError as why:
                unreadable.append((listing.paths[position], str(why)))
            advance(1)
    return Seen(listing, wanted, positions, digests, headers, thumbnails[: len(positions)], unreadable)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
