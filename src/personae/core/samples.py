"""Labelled images as an algorithm sees them: by position, decoded, with labels counted from zero."""

from typing import Protocol

from torch import Tensor


class Samples(Protocol):
    """A set of images of `classes` classes, held by one party."""

    @property
    def labels(self) -> Tensor:
        """int64 [N], each in 0 .. classes - 1."""

    @property
    def classes(self) -> int: ...

    @property
    def identities(self) -> tuple[str, ...]:
        """The name behind each label. It stays with the party that holds the images."""

    def __len__(self) -> int: ...

    def images(self, positions: Tensor) -> Tensor:
        """uint8 [len(positions), height, width, 3], RGB, on the device that the positions are on."""
