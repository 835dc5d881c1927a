"""Pairs of images for the 10-fold protocol, drawn the way LFW's are: no identity occurs in two folds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.errors import ConfigError, DataError
from personae.words import counted

Folds = int | tuple[int, ...]
"""How many folds of equal length there are, or how long each is."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Positions of images to compare, fold after fold."""

    left: Tensor
    right: Tensor
    same: Tensor
    folds: Folds = 10


def in_folds(values: npt.NDArray[Any], folds: Folds, axis: int = 0) -> list[npt.NDArray[Any]]:
    """Values of pairs, fold by fold; the first ones are longer by one where their number does not divide."""
    return np.array_split(values, folds if isinstance(folds, int) else np.cumsum(folds)[:-1], axis)


def sample_pairs(labels: Tensor, *, folds: int = 10, pairs_per_fold: int = 600, seed: int = 0) -> Pairs:
    """Divide the identities among the folds; in each, draw half genuine and half impostor pairs, none of them twice.

    Identities are dealt by falling number of images, so that every fold has about as many pairs to draw from. Within a
    fold every genuine pair is equally likely, and so is every impostor pair.
    """
    if folds < 2 or pairs_per_fold < 2 or pairs_per_fold % 2:
        raise ConfigError(f"{folds} folds of {pairs_per_fold} pairs: take at least 2 folds of an even number of pairs")
    random = np.random.default_rng(seed)
    drawn = [
        _draw(members, pairs_per_fold // 2, fold, folds, random)
        for fold, members in enumerate(_deal(labels.numpy(), folds, random))
    ]
    left, right = (torch.from_numpy(np.concatenate(side)) for side in zip(*drawn, strict=True))
    same = torch.tensor([True, False]).repeat_interleave(pairs_per_fold // 2).repeat(folds)
    return Pairs(left, right, same, folds)


def _deal(labels: Integers, folds: int, random: np.random.Generator) -> list[list[Integers]]:
    """For each fold, the image positions of each of its identities."""
    identities = [np.flatnonzero(labels == label) for label in random.permutation(np.unique(labels))]
    identities.sort(key=len, reverse=True)
    there_and_back = [*range(folds), *reversed(range(folds))]
    hands: list[list[Integers]] = [[] for _ in range(folds)]
    for turn, members in enumerate(identities):
        hands[there_and_back[turn % len(there_and_back)]].append(members)
    return hands


def _draw(
    identities: list[Integers], half: int, fold: int, folds: int, random: np.random.Generator
) -> tuple[Integers, Integers]:
    """`half` genuine pairs, then `half` impostor pairs.

    With the images of an identity side by side, the partners of an image that come after it are one stretch for its
    genuine pairs (up to the end of its identity) and one for its impostor pairs (from there on).
    """
    sizes = np.array([len(members) for members in identities], dtype=np.int64)
    total = int(sizes.sum())
    end = np.repeat(np.cumsum(sizes), sizes)
    after = np.arange(total) + 1
    genuine, impostor = end - after, total - end
    available = min(int(genuine.sum()), int(impostor.sum()))
    if available < half:
        raise DataError(
            f"{folds} folds of {2 * half} pairs need {half} genuine and {half} impostor pairs of different identities"
            f" in every fold; fold {fold + 1} has {genuine.sum()} and {impostor.sum()}, with"
            f" {counted(len(identities), 'identity')} and {counted(total, 'image')}: take fewer pairs or folds, or more"
            " images"
        )
    images = np.concatenate(identities)
    first, second = zip(_choose(after, genuine, half, random), _choose(end, impostor, half, random), strict=True)
    return images[np.concatenate(first)], images[np.concatenate(second)]


def _choose(start: Integers, count: Integers, amount: int, random: np.random.Generator) -> tuple[Integers, Integers]:
    """Draw `amount` different pairs (i, j) with start[i] <= j < start[i] + count[i], without listing them all."""
    until = np.cumsum(count)
    ranks = random.choice(int(until[-1]), size=amount, replace=False)
    first = np.searchsorted(until, ranks, side="right")
    return first, start[first] + ranks - (until - count)[first]
