"""Public samples that somebody could take for one of a client's own people: exact, block by block, never all pairs.

A public sample is a hard negative if its score with any local one, the cosine of their features, is above a threshold.
Scores are those of `core/exact.py`, so that no block size, kernel or device changes what is chosen. They are computed
for few: products in fast arithmetic are within a proven distance e of the score; a sample whose highest product is more
than e above the threshold is chosen, one whose highest is more than e below is not, and the rest go to the next finer
arithmetic, the last of which is exact.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.exact import unit_on_grid
from personae.core.precision import plain_float32
from personae.errors import Diverged

Screen = Literal["float32", "bfloat16"]

IN_CACHE, ON_GPU = 1024, 16384  # rows of both kinds at a time; on a CPU their products stay in the cache


class HardNegatives:
    """The local samples of one client, by their features `local` [M, D], and how near is near.

    `screen` is the arithmetic that looks first. bfloat16 decides fewer samples and is faster where a machine has it.
    """

    def __init__(self, local: Tensor, threshold: float, screen: Screen = "float32") -> None:
        self.threshold, self.device = threshold, local.device
        self.block = IN_CACHE if local.device.type == "cpu" else ON_GPU
        exact = unit_on_grid(local).to(self.device)
        passes: list[tuple[Tensor, float]] = [(exact.float(), error_of("float32", local.shape[1])), (exact, 0.0)]
        if screen == "bfloat16":
            passes.insert(0, (exact.bfloat16(), error_of("bfloat16", local.shape[1])))
        self._passes = passes

    @torch.no_grad()
    def among(self, public: Tensor) -> Tensor:
        """bool [N]: which of the public samples with features [N, D] are hard. They may be memory-mapped."""
        hard = torch.zeros(len(public), dtype=torch.bool)
        with _as_declared():
            for start in range(0, len(public), self.block):
                here = slice(start, start + self.block)
                hard[here] = self._block(public[here])
        return hard

    def _block(self, public: Tensor) -> Tensor:
        hard = torch.zeros(len(public), dtype=torch.bool)
        undecided = torch.arange(len(public))
        for local, error in self._passes:
            highest = self._highest(public[undecided], local)
            if not highest.isfinite().all():
                raise Diverged("features of public faces are not finite: the global model has diverged")
            hard[undecided[highest > self.threshold + error]] = True
            undecided = undecided[(highest - self.threshold).abs() <= error] if error else undecided[:0]
            if not len(undecided):
                break
        return hard

    def _highest(self, public: Tensor, local: Tensor) -> Tensor:
        """Of each public sample, the highest product with any local one, in the arithmetic of `local`."""
        if local.dtype == torch.float64:
            rows = unit_on_grid(public).to(self.device)
        else:
            rows = F.normalize(public.to(self.device)).to(local.dtype)
        products, peaks = rows.new_empty(len(rows) * min(self.block, len(local))), []
        for part in local.split(self.block):  # type: ignore[no-untyped-call]
            tile = products[: len(rows) * len(part)].view(len(rows), len(part))
            peaks.append(torch.mm(rows, part.T, out=tile).amax(1))
        return torch.stack(peaks).amax(0).double().cpu()


def error_of(arithmetic: Screen, dimensions: int) -> float:
    """How far the product of two rows in this arithmetic can be from their score, whatever the kernel.

    With u = 2^-24: the length of a float32 row of n numbers is off by (n / 2 + 3) u of itself, each component of the
    scaled row by 2u more; both rows together make (n + 10) u. The n products and sums of float32 make n u, in any
    order (Cauchy-Schwarz: absolute products of unit rows add up to one at most). Rows on the grid of exact scores are
    within sqrt(n) u / 8 of the unit rows that they stand for. bfloat16 rounds each component once more, by 2^-8 of
    itself, and the product too; it sums in float32. The factors pay for products of these errors, and 16 u for
    underflow.
    """
    float32 = (2 * dimensions + math.sqrt(dimensions) + 26) * 2.0**-24 * (1 + dimensions * 2.0**-20)
    return float32 if arithmetic == "float32" else float32 * (1 + 2.0**-5) + (2 * 2.0**-8 + 2.0**-16 + 2.0**-8) * 1.01


@contextmanager
def _as_declared() -> Iterator[None]:
    """Sums are really made in float32, even where the user allows a GPU less."""
    options = torch.backends.cuda.matmul
    before = options.allow_bf16_reduced_precision_reduction
    options.allow_bf16_reduced_precision_reduction = False
    try:
        with plain_float32():
            yield
    finally:
        options.allow_bf16_reduced_precision_reduction = before
