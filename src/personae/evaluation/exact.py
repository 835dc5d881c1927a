"""Cosine scores that are the same to the last bit for any block size, thread count or device.

Unit vectors are rounded to multiples of 2^-26, which is about what float32 resolves. Every product of two components is
then a multiple of 2^-52, and every partial sum of products is at most about one (Cauchy-Schwarz), so float64 holds all
of them without rounding: the order of summation, which differs between kernels, cannot show.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.errors import Diverged

GRID = 2.0**26
BLOCK_SCORES = 2**22


def unit(embeddings: Tensor) -> Tensor:
    """Rows of length one in float64."""
    rows = F.normalize(embeddings.detach().to("cpu", torch.float64), dim=1)
    if not torch.isfinite(rows).all():
        raise Diverged("the embeddings are not finite, so they cannot be compared: training has diverged")
    return rows


def unit_on_grid(embeddings: Tensor) -> Tensor:
    """Rows of length one in float64 whose products with each other are exact; a zero row stays zero."""
    return (unit(embeddings) * GRID).round() / GRID


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Cut the rows of a matrix of scores into blocks small enough to hold; the results do not depend on the size."""
    height = max(1, BLOCK_SCORES // max(1, columns))
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))
