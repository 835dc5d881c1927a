"""The median of every entry (Yin et al. 2018)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.aggregation.stack import stacked
from personae.core.aggregation import Aggregation, Vectors, Workbench


@dataclass(frozen=True, kw_only=True)
class Median(Aggregation):
    """Entry by entry; of an even number of vectors the mean of the two in the middle."""

    name: ClassVar[str] = "median"

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        result = torch.empty_like(around)
        with stacked(vectors, bench) as stack:
            low, high = (stack.count - 1) // 2, stack.count // 2
            for columns, block in stack.blocks():
                ordered = block.sort(dim=0).values
                result[columns] = torch.lerp(ordered[low], ordered[high], 0.5)
        return result
