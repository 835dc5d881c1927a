"""Cosine scores that are the same to the last bit for any block size, thread count or device.

Unit vectors are rounded to multiples of 2^-26, which is about what float32 resolves. Every product of two components is
then a multiple of 2^-52, and every partial sum of products is at most about one (Cauchy-Schwarz), so float64 holds all
of them without rounding: the order of summation, which differs between kernels, cannot show. The score is that sum,
rounded once to float32.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.errors import Diverged

GRID = 2.0**26
TINY = 1e-12
BLOCK_SCORES = 2**22
ROUNDED_ROWS = 512  # at a time, so that they stay in the cache
PAIRS_AT_ONCE, PAIRS_AT_ONCE_ON_GPU = 256, 2**17

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def unit(embeddings: Tensor) -> Tensor:
    """Rows of length one in float64, on the device of the embeddings; a zero row stays zero."""
    return _scaled(embeddings, 1.0)


def unit_on_grid(embeddings: Tensor) -> Tensor:
    """Rows of length one in float64 whose products with each other are exact; a zero row stays zero."""
    # NumPy asks for large pages, and to fill memory that is new takes half the time.
    rows = torch.from_numpy(np.empty(embeddings.shape)).to(embeddings.device)
    for start in range(0, len(rows), ROUNDED_ROWS):
        part = slice(start, start + ROUNDED_ROWS)
        # A power of two more or less changes no rounding.
        torch.mul(_scaled(embeddings[part], GRID).round_(), 1 / GRID, out=rows[part])
    return rows


def _scaled(embeddings: Tensor, length: float) -> Tensor:
    """Rows of this length, a power of two."""
    rows = embeddings.detach().to(torch.float64)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not torch.isfinite(lengths).all():
        raise Diverged("the embeddings are not finite, so they cannot be compared: training has diverged")
    return rows / lengths.clamp_min_(TINY).div_(length)


def pair_scores(left: Tensor, rows: Integers, right: Tensor, columns: Integers) -> Floats:
    """The scores of some pairs of rows on the grid, a few at a time, so that they stay in the cache of a CPU."""
    device = left.device
    scores = np.empty(len(rows), dtype=np.float32)
    if device.type == "cpu":  # where NumPy adds up the products without writing them
        here, there = left.numpy(), right.numpy()
        for start in range(0, len(rows), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            scores[part] = np.vecdot(here[rows[part]], there[columns[part]])
        return scores
    for start in range(0, len(rows), PAIRS_AT_ONCE_ON_GPU):
        part = slice(start, start + PAIRS_AT_ONCE_ON_GPU)
        first, second = (torch.from_numpy(side[part]).to(device) for side in (rows, columns))
        products = left.index_select(0, first).mul_(right.index_select(0, second))
        scores[part] = products.sum(dim=1).float().cpu().numpy()
    return scores


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Cut the rows of a matrix of scores into blocks small enough to hold; the results do not depend on the size."""
    height = max(1, BLOCK_SCORES // max(1, columns))
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def screening_error(dimensions: int) -> float:
    """How far the product of two rows in plain float32 arithmetic can be from their score, whatever the kernel.

    With u = 2^-24, both components of a product are off by u of themselves once they are float32, and so are the
    product and each of the n - 1 sums, in any order, fused or not. Absolute products of unit rows add up to one at most
    (Cauchy-Schwarz), so that makes (n + 2) u, and u more for the rounding of the score itself. The factor pays for the
    products of such errors, the other 18 u for rows that the grid makes a hair longer than one, and for underflow.
    """
    return (dimensions + 21) * 2.0**-24 * (1 + dimensions * 2.0**-22)
