"""Images as an algorithm sees them: by position, decoded, with labels counted from zero, or without any."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

UNLABELLED = -1  # in the place of a label: nobody says who is on the image


class Samples(Protocol):
    """A set of images of `classes` classes, held by one party; of no class where nobody says who is on them."""

    @property
    def labels(self) -> Tensor:
        """int64 [N], each in 0 .. classes - 1, or UNLABELLED."""

    @property
    def classes(self) -> int: ...

    @property
    def identities(self) -> tuple[str, ...]:
        """The name behind each label. It stays with the party that holds the images."""

    def __len__(self) -> int: ...

    def images(self, positions: Tensor) -> Tensor:
        """uint8 [len(positions), height, width, 3], RGB, on the device that the positions are on."""


def is_labelled(samples: Samples) -> bool:
    """Whether it is known who is on the images: on all of them, since a party has labelled its faces or has not."""
    return samples.classes > 0


@dataclass(frozen=True, eq=False)
class Joined:
    """Samples of two sets under one coding: the classes of the first, then all those of the second.

    Of the second set only the `chosen` positions are there; classes of which nothing was chosen are counted all the
    same, so that labels mean the same whatever is chosen.
    """

    first: Samples
    second: Samples
    chosen: Tensor  # int64: positions in the second set

    @cached_property
    def labels(self) -> Tensor:
        return torch.cat([self.first.labels, self.first.classes + self.second.labels[self.chosen]])

    @property
    def classes(self) -> int:
        return self.first.classes + self.second.classes

    @property
    def identities(self) -> tuple[str, ...]:
        return (*self.first.identities, *self.second.identities)

    def __len__(self) -> int:
        return len(self.first) + len(self.chosen)

    def images(self, positions: Tensor) -> Tensor:
        of_first = positions < len(self.first)
        own = self.first.images(positions[of_first])
        theirs = self.second.images(self.chosen.to(positions.device)[positions[~of_first] - len(self.first)])
        images = own.new_empty(len(positions), *(own if len(own) else theirs).shape[1:])
        images[of_first], images[~of_first] = own, theirs
        return images


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some samples of a set, under a coding of the classes that are among them."""

    whole: Samples
    positions: Tensor  # int64: in the whole set

    @cached_property
    def _coding(self) -> tuple[Tensor, Tensor]:
        there, labels = torch.unique(self.whole.labels[self.positions], return_inverse=True)
        return there, labels

    @property
    def labels(self) -> Tensor:
        return self._coding[1]

    @property
    def classes(self) -> int:
        return len(self._coding[0])

    @property
    def identities(self) -> tuple[str, ...]:
        return tuple(self.whole.identities[label] for label in self._coding[0].tolist())

    def __len__(self) -> int:
        return len(self.positions)

    def images(self, positions: Tensor) -> Tensor:
        return self.whole.images(self.positions.to(positions.device)[positions])
