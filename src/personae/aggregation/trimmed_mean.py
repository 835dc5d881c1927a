"""The mean of every entry without its extremes (Yin et al. 2018)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from personae.aggregation.stack import stacked
from personae.core.aggregation import Aggregation, Vectors, Workbench
from personae.core.bounds import within


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Aggregation):
    """Entry by entry, without the largest and the smallest values."""

    name: ClassVar[str] = "trimmed-mean"

    cut: Annotated[float, within("[0, 0.5)")]
    """The share of the vectors that is left out at each end, in [0, 0.5), rounded down."""

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        result = torch.empty_like(around)
        with stacked(vectors, bench) as stack:
            left_out = int(self.cut * stack.count + 1e-9)
            for columns, block in stack.blocks():
                kept = block.sort(dim=0).values[left_out : stack.count - left_out]
                result[columns] = kept.double().mean(dim=0).float()
        return result
