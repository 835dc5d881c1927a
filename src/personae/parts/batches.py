"""Batches of training: what a loss sees, and in which order images come."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """What a loss sees: normalised, augmented images and their labels, on the device."""

    images: Tensor
    labels: Tensor


Loss = Callable[[Batch], Tensor]


def even_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled positions in batches, epoch after epoch.

    The batches of an epoch are as equal as can be: a last batch of one image would have no variance to normalise by.
    """
    parts = math.ceil(count / size)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.tensor_split(parts)


def full_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled positions, epoch after epoch, in batches of one size that go over the end of an epoch.

    An image is seen twice in a batch where that happens, and as often as it takes where there are fewer than `size`.
    """
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=generator)])
        yield left[:size]
        left = left[size:]
