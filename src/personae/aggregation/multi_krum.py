"""The mean of the vectors that have the nearest neighbours (Blanchard et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.aggregation.stack import stacked
from personae.core.aggregation import Aggregation, Vectors, Workbench
from personae.core.bounds import NonNegativeInt


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Aggregation):
    """Of n vectors, the n - f with the least sum of squared distances to their n - f nearest, themselves included."""

    name: ClassVar[str] = "multi-krum"

    faulty: NonNegativeInt
    """f: how many clients of a round may send anything; fewer than half of those that are asked. If so many answers are
    refused or missing that f would be half of the rest, it is the most that is less than half of them."""

    @property
    def least(self) -> int:
        return 2 * self.faulty + 1

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        with stacked(vectors, bench) as stack:
            kept = stack.count - min(self.faulty, (stack.count - 1) // 2)  # nobody ends a run by being refused
            products = stack.products(around)
            lengths = products.diagonal()
            distances = lengths[:, None] + lengths[None, :] - 2 * products
            scores = distances.sort(dim=1).values[:, :kept].sum(dim=1)
            chosen = scores.argsort(stable=True)[:kept]
            weights = torch.zeros(stack.count, dtype=torch.float64)
            weights[chosen] = 1 / kept
            return stack.combined(weights)
