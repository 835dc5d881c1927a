"""An index of faces: who is on each image and what else is known of it, over pixels that stay on disk."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from personae.data.pixels import Pixels, Store
from personae.errors import DataError
from personae.words import counted, number_of_images

if TYPE_CHECKING:  # PyTorch takes a second or two to import, and an index needs none of it
    from personae.data.samples import FaceSamples

Rows = NDArray[np.int64]
UNLABELLED = -1  # in the place of an identity: nobody says who is on the image


@dataclass(frozen=True, eq=False, repr=False)
class FaceSet:
    """Faces as rows of a table. A selection shares the pixels, the names and the codes of the whole."""

    name: str
    identities: tuple[str, ...]
    identity: Rows
    """Per row, a code into `identities`, or UNLABELLED."""
    columns: Mapping[str, NDArray[Any]]
    """Per row, any of domain, media, template, split, path, and attributes as booleans by their own name."""
    pixels: Store
    stored: Rows
    """Per row, its place in the pixel store."""
    unreadable: int = 0
    """Images that were left out because they could not be used."""
    plain: int = 0
    """Images that were taken whole because no face was found in them."""

    def __repr__(self) -> str:
        return f"FaceSet({self.name!r}: {counted(len(self), 'image')} of {counted(len(self.identities), 'identity')})"

    def __len__(self) -> int:
        return len(self.identity)

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.height, self.pixels.width

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        """Per row, whether it is known who is on the image."""
        return np.not_equal(self.identity, UNLABELLED)

    @property
    def images_per_identity(self) -> Rows:
        return np.bincount(self.identity[self.labelled], minlength=len(self.identities))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of labels and pixels that is the same on every machine."""
        digest = hashlib.sha256()
        for part in (self.pixels.digest, str(self.size), *self.identities):
            digest.update(part.encode() + b"\0")
        for name, values in {"": self.identity, "stored": self.stored, **self.columns}.items():
            digest.update(name.encode() + b"\0" + canonical(values))
        return digest.hexdigest()

    def select(self, rows: Rows | Sequence[int]) -> "FaceSet":
        chosen = np.asarray(rows, dtype=np.int64)
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return replace(self, identity=self.identity[chosen], columns=columns, stored=self.stored[chosen])

    def images(self, rows: Rows) -> Pixels:
        """uint8 [len(rows), height, width, 3], RGB."""
        return self.pixels.take(self.stored[rows])

    def samples(self, rows: Rows | None = None) -> "FaceSamples":
        """The rows (all by default) as an algorithm sees them, labelled from zero in the order of their identities."""
        import torch

        from personae.data.samples import FaceSamples

        chosen = np.arange(len(self)) if rows is None else np.asarray(rows, dtype=np.int64)
        given = self.identity[chosen]
        codes = np.unique(given[given != UNLABELLED])
        labels = np.where(given == UNLABELLED, UNLABELLED, np.searchsorted(codes, given)).astype(np.int64)
        names = tuple(self.identities[code] for code in codes)
        return FaceSamples(names, torch.from_numpy(labels), self.pixels, self.stored[chosen])

    def slice_identities(
        self, first: int, count: int | None, min_images: int = 1, max_images: int | None = None
    ) -> "FaceSet":
        """`count` identities (None: all) from the `first` on, of those with so many images."""
        images = self.images_per_identity
        fitting = np.flatnonzero((images >= max(min_images, 1)) & (images <= (max_images or images.max(initial=1))))
        stop = len(fitting) if count is None else first + count
        if first < 0 or stop > len(fitting) or stop <= first:
            having = number_of_images(min_images, max_images)
            if not fitting.size:
                raise DataError(
                    f"{self.name}: none of {counted(len(images), 'identity')} has {having}; add images, or "
                    f"{'lower min_images' if max_images is None else 'change min_images or max_images'}"
                )
            asked = "all" if count is None else f"{count}"
            raise DataError(
                f"{self.name}: first = {first} and identities = {asked} do not fit: there "
                f"{'is' if len(fitting) == 1 else 'are'} {counted(len(fitting), 'identity')}"
                f"{f' with {having}' if having else ''}; lower them"
            )
        return self.select(np.flatnonzero(np.isin(self.identity, fitting[first:stop])))


def canonical(values: NDArray[Any]) -> bytes:
    """Bytes of a column that depend on neither the widest string in it nor the byte order of the machine."""
    if values.dtype.kind == "U":
        return "\0".join(values.tolist()).encode()
    return values.astype(values.dtype.newbyteorder("<")).tobytes()
