"""Averages of models that arrive one by one, in the memory of one model."""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor

Weighting = Literal["samples", "uniform"]


def weight_of(weighting: Weighting, samples: int) -> float:
    """A client's weight: its number of samples, or one."""
    return float(samples) if weighting == "samples" else 1.0


def weighted_mean(vectors: Iterable[tuple[Tensor, float]]) -> Tensor:
    """The weighted mean of vectors, each seen once.

    A running mean m <- m + (w / W)(x - m), with W the weight so far: every step is a convex combination, so the mean
    of equal vectors is that vector to the bit, and nothing overflows however large the weights are.
    """
    mean: Tensor | None = None
    total = 0.0
    for vector, weight in vectors:
        total += weight
        if mean is None:
            mean = vector.clone()
        else:
            mean.lerp_(vector.to(mean.device), weight / total)
    if mean is None:
        raise ValueError("there is nothing to average")
    return mean
