"""Means of a few vectors each, so that honest vectors differ less (Karimireddy et al. 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.aggregation.prepared import Preparation
from personae.aggregation.stack import stacked
from personae.core.aggregation import Vectors, Workbench, weighted_mean
from personae.core.bounds import PositiveInt


@dataclass(frozen=True, kw_only=True)
class Bucketing(Preparation):
    """The vectors in a random order, and of each bucket in turn their weighted mean, with their weights together."""

    name: ClassVar[str] = "bucketing"

    size: PositiveInt = 2
    """How many vectors share a bucket; the last one may have fewer."""

    def least(self, wanted: int) -> int:
        return (wanted - 1) * self.size + 1

    def apply(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Iterator[tuple[Tensor, float]]:  # noqa: ARG002
        with stacked(vectors, bench) as stack:
            order = torch.randperm(stack.count, generator=bench.generator).tolist()
            for begin in range(0, stack.count, self.size):
                bucket = order[begin : begin + self.size]
                weights = [stack.weights[index] for index in bucket]
                yield weighted_mean((stack.row(index), stack.weights[index]) for index in bucket), sum(weights)
