"""Many vectors at once, without holding them in memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from personae.core.aggregation import Vectors, Workbench

BLOCK = 16 << 20  # bytes of all vectors together that are in memory at a time


@dataclass(frozen=True)
class Stack:
    """Vectors as the rows of a matrix in a file, to be read in blocks of columns or row by row."""

    matrix: np.memmap
    weights: list[float]
    device: torch.device

    @property
    def count(self) -> int:
        return len(self.weights)

    def row(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.matrix[index])).to(self.device)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Columns and float32 [K, columns] of all vectors there."""
        count, length = self.matrix.shape
        step = max(1, BLOCK // (4 * count))
        for begin in range(0, length, step):
            columns = slice(begin, min(begin + step, length))
            yield columns, torch.from_numpy(np.array(self.matrix[:, columns])).to(self.device)

    def combined(self, weights: Tensor) -> Tensor:
        """The sum of all vectors with these weights, float64 [K], block by block."""
        result = torch.empty(self.matrix.shape[1], device=self.device)
        for columns, block in self.blocks():
            result[columns] = (weights.to(block.device) @ block.double()).float()
        return result

    def products(self, around: Tensor, first: int | None = None) -> Tensor:
        """float64 [K, K]: the inner products of the vectors' differences from `around`, in their `first` entries.

        All distances between vectors, and from any combination of them, follow from these.
        """
        found = torch.zeros(self.count, self.count, dtype=torch.float64, device=self.device)
        for columns, block in self.blocks():
            away = block.double() - around[columns].to(block.device).double()
            away = away if first is None else away[:, : max(0, first - columns.start)]
            found += away @ away.T
        return found.cpu()


@contextmanager
def stacked(vectors: Vectors, bench: Workbench) -> Iterator[Stack]:
    """The vectors in a file that is gone afterwards, even if this process is killed meanwhile."""
    weights: list[float] = []
    length, device = 0, torch.device("cpu")
    if bench.scratch is not None:
        bench.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=bench.scratch) as file:
        for vector, weight in vectors:
            length, device = len(vector), vector.device
            file.write(vector.float().cpu().contiguous().numpy().data)
            weights.append(weight)
        if not weights:
            raise ValueError("there is nothing to aggregate")
        file.flush()
        matrix = np.memmap(file, dtype=np.float32, mode="r", shape=(len(weights), length))
        yield Stack(matrix, weights, device)
