"""How the vectors of a round become one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from personae.core.bounds import Bounded

Vectors = Iterable[tuple[Tensor, float]]  # each with its weight; they come one by one, and once


def weighted_mean(vectors: Vectors) -> Tensor:
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


@dataclass(frozen=True)
class Workbench:
    """What a rule may use besides the vectors."""

    generator: torch.Generator = field(default_factory=torch.Generator)
    scratch: Path | None = None  # a folder for vectors that memory does not hold; the system's by default
    weights: int | None = None  # how many entries of a model's vector are weights, before the statistics
    judge: Callable[[Tensor], float] | None = None  # how well a model tells rendered faces apart: 0.5 is chance


class Aggregation(Bounded, ABC):
    """A rule: a frozen dataclass of its settings."""

    name: ClassVar[str]
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @property
    def least(self) -> int:
        """How many vectors it takes."""
        return 1

    @abstractmethod
    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        """One vector out of many. `around` is the vector that all of them started from."""


@dataclass(frozen=True, kw_only=True)
class Mean(Aggregation):
    """The weighted mean: one pass, in the memory of one model."""

    name: ClassVar[str] = "mean"

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:  # noqa: ARG002
        return weighted_mean(vectors)
