"""The point with the least sum of distances to all vectors (Pillutla et al. 2022, RFA)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from personae.aggregation.stack import stacked
from personae.core.aggregation import Aggregation, Vectors, Workbench
from personae.core.bounds import PositiveInt, above


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Aggregation):
    """Weiszfeld's algorithm, smoothed: z <- sum_i x_i / max(nu, |z - x_i|), divided by the sum of these weights.

    z is always a combination of the vectors, so all distances follow from the products of the vectors with each other,
    which are computed once.
    """

    name: ClassVar[str] = "geometric-median"

    smoothing: Annotated[float, above(0)] = 1e-6
    """nu, relative to the median distance of the vectors from their mean: nearer than this, distances count as this."""
    tolerance: Annotated[float, above(0)] = 1e-9
    """It ends when no weight moves by more than this, of a sum of one."""
    iterations: PositiveInt = 1000
    """Or after so many steps."""

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        with stacked(vectors, bench) as stack:
            products = stack.products(around)
            weights = torch.full((stack.count,), 1 / stack.count, dtype=torch.float64)
            floor = self.smoothing * float(_distances(products, weights).median())
            for _ in range(self.iterations):
                inverse = 1 / _distances(products, weights).clamp_min(max(floor, 1e-30))
                before, weights = weights, inverse / inverse.sum()
                if float((weights - before).abs().max()) < self.tolerance:
                    break
            return stack.combined(weights)


def _distances(products: Tensor, weights: Tensor) -> Tensor:
    """[K]: of each vector from the combination of all with these weights, which sum to one."""
    inside = products @ weights
    return (products.diagonal() - 2 * inside + weights @ inside).clamp_min(0).sqrt()
