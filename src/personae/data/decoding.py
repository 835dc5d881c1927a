"""From encoded images to pixels of one size: which part of an image is taken, and what becomes of unusable ones."""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from personae.data import detection, haar
from personae.data.aligned import align_face
from personae.data.handling import Crop, Missed
from personae.data.images import ImageError, NoFaceError, decode, size_of
from personae.data.pixels import Append, Filled, Pixels
from personae.data.readers.listing import Listing
from personae.data.shapes import Sizes, refuse_unaligned
from personae.errors import Unreadable
from personae.files import write_text
from personae.progress import Notify, Progress
from personae.words import as_text, counted

UNREADABLE = "unreadable.csv"
"""Which images were left out, and why: a list that stays on this machine."""


@dataclass(frozen=True)
class Decoding:
    """How the images of a listing become pixels."""

    listing: Listing
    height: int
    width: int
    skip_unreadable: bool = False
    crop: Crop | None = None
    missed: Missed | None = None
    as_they_are: bool = False

    def __post_init__(self) -> None:
        if self.crop is not None:
            (haar if self.crop == "haar" else detection).require()

    @property
    def cut(self) -> str:
        """Another text for another way to cut pixels out of the same images; empty where they are taken whole."""
        return (self.crop or "") + (" or whole" if self.crop and self.missed == "crop" else "")

    def fill(self, append: Append, progress: Progress) -> Filled:
        """Every image that can be decoded, and a note of every one that cannot."""
        # Of the encoded bytes, not of the pixels: decoders of different machines may differ in the last bit.
        digest = hashlib.sha256(self.cut.encode())
        missing: list[tuple[int, str]] = []
        faceless: set[int] = set()
        sizes: Counter[tuple[int, int]] = Counter()
        plain, images = 0, len(self.listing.paths)
        with self.listing.opened() as fetch, progress(f"decoding {self.listing.source.stem}", images, "images") as done:
            for position in range(images):
                try:
                    encoded = fetch(position)
                    digest.update(hashlib.sha256(encoded).digest())
                    try:
                        pixels = self._decode(encoded, self._cutter)
                    except NoFaceError:
                        if self.missed != "crop":
                            raise
                        pixels = self._decode(encoded, None)
                        plain += 1
                    append(pixels[None])
                    if self.crop is None:
                        sizes[size_of(encoded)] += 1
                        self._check_shapes(sizes, as_text(self.listing.paths[position]))
                except ImageError as why:
                    missing.append((position, str(why)))
                    if isinstance(why, NoFaceError):
                        faceless.add(position)
                done(1)
        return Filled(digest.hexdigest(), tuple(missing), frozenset(faceless), sizes, plain)

    def check(self, filled: Filled, listed_in: Path, notify: Notify) -> None:
        """Raise a DataError where images were not to be left out, or cannot be aligned faces."""
        self._check_shapes(filled.sizes)
        if not filled.missing:
            return
        table = self._table(filled)
        if not listed_in.exists() or listed_in.read_text(encoding="utf-8") != table:
            write_text(listed_in, table)
        left = len(self.listing.paths) - len(filled.missing)
        images = f"{len(filled.missing):,} of {counted(len(self.listing.paths), 'image')}"
        skipped = filled.faceless if self.missed == "skip" else frozenset[int]()
        stopping = [each for each in filled.missing if not left or not (self.skip_unreadable or each[0] in skipped)]
        if not stopping:
            notify(f"{self.listing.source}: left out {images}; they are listed in {listed_in}")
            return
        position, why = stopping[0]
        advice = "repair or remove them"
        if left:
            advice += ", or leave such files out with --skip-unreadable (in an experiment skip_unreadable = true)"
        if any(place in filled.faceless for place, _ in stopping):
            advice += ', or take those without a face whole with --missed crop (missed = "crop")'
        raise Unreadable(
            f"{self.listing.source}: {images} cannot be used, the first is {self.listing.paths[position]} ({why});"
            f" {advice}. All of them are listed in {listed_in}"
        )

    @property
    def _cutter(self) -> Callable[[Pixels], Pixels] | None:
        if self.crop == "align":
            return partial(align_face, height=self.height, width=self.width)
        return haar.crop_face if self.crop else None

    def _decode(self, encoded: bytes, crop: Callable[[Pixels], Pixels] | None) -> Pixels:
        return decode(encoded, self.height, self.width, upright=self.listing.upright, crop=crop)

    def _check_shapes(self, sizes: Sizes, latest: str = "") -> None:
        if not self.as_they_are:
            refuse_unaligned(sizes, self.height, self.width, str(self.listing.source), latest)

    def _table(self, filled: Filled) -> str:
        text = io.StringIO(newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("path", "why"))
        table.writerows((as_text(self.listing.paths[position]), why) for position, why in filled.missing)
        return text.getvalue()
