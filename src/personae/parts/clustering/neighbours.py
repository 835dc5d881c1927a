"""First neighbours: of every row the nearest other one, the same for any block size, thread count or device.

Coordinates are rounded to multiples of 2^-24 of a power of two that no row is longer than. float32 holds such numbers
as they are, and float64 every partial sum of squared differences, so the distance of two rows does not depend on the
order of summation. A matrix product in float32, block by block over half of the pairs, only screens: whatever rounding
could have kept from being the nearest is measured exactly. Of equally near rows the first one is the neighbour.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from personae.core.precision import plain_float32
from personae.errors import ConfigError, DataError, Diverged

Metric = Literal["euclidean", "cosine"]
Search = Literal["exact", "faiss"]

GRID = 2.0**24
BLOCK = 1024
MEASURED = 2**13  # pairs measured at once


@dataclass(frozen=True, eq=False)
class Neighbours:
    index: Tensor  # int64 [N]: the nearest other row
    distance: Tensor  # float64 [N]: how far it is


@torch.no_grad()
def first_neighbours(
    rows: Tensor, metric: Metric = "euclidean", *, search: Search = "exact", block: int = BLOCK
) -> Neighbours:
    """The nearest other row of each of `rows` [N, D], N at least 2.

    The cosine distance is 1 - cos. `search` exact compares all pairs, in the memory of one block; faiss looks into the
    nearest cells of an inverted file only, which is for more rows than time allows to compare, and may miss some.
    """
    if len(rows) < 2:
        raise DataError(f"{len(rows)} images have no neighbours; clustering takes at least 2")
    points, scale = _on_grid(rows, metric)
    with plain_float32():
        index, squared = _exact(points, block) if search == "exact" else _approximate(points)
    return Neighbours(index, squared / 2 if metric == "cosine" else squared.sqrt() * scale)


def _on_grid(rows: Tensor, metric: Metric) -> tuple[Tensor, float]:
    """float32 rows of a length of at most one, with coordinates on the grid, and what they were divided by."""
    exact = rows.to(torch.float64, copy=True)
    if metric == "cosine":
        exact = torch.nn.functional.normalize(exact, dim=1)
    longest = float(exact.norm(dim=1).max())
    if not math.isfinite(longest):
        raise Diverged("the features are not finite, so they cannot be clustered: training has diverged")
    # A length of one may come out a hair longer, which must not double the scale.
    scale = 2.0 ** math.ceil(math.log2(longest) - 1e-9) if longest > 0 else 1.0
    return exact.div_(scale).mul_(GRID).round_().div_(GRID).float(), scale


def _exact(points: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Index and squared distance, from the products of all pairs of blocks, each pair once."""
    found = _Nearest(points)
    halves = points.double().square().sum(1).div(2).float()
    parts = [slice(start, min(start + block, len(points))) for start in range(0, len(points), block)]
    for number, here in enumerate(parts):
        for there in parts[number:]:
            # -|x - y|^2 / 2 = x·y - |x|^2 / 2 - |y|^2 / 2, which serves both sides
            closeness = torch.addmm(-halves[there], points[here], points[there].T).sub_(halves[here, None])
            if here == there:
                found.offer(closeness.fill_diagonal_(-math.inf), here, there)
            else:
                found.offer(closeness, here, there)
                found.offer(closeness.T, there, here)
    return found.index, found.squared


class _Nearest:
    """The nearest row so far. Blocks are offered to a row in the order of their rows, so a tie never displaces it."""

    def __init__(self, points: Tensor) -> None:
        self.points = points
        self.index = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        self.squared = torch.full((len(points),), math.inf, dtype=torch.float64, device=points.device)
        self.closest = torch.full((len(points),), -math.inf, device=points.device)
        # With u = 2^-24: n products of a total of one at most and their n sums, in any order; the halves, and sums of
        # them up to two. Both of two compared values may be off by that.
        self.slack = 2 * (points.shape[1] + 16) * 2.0**-24 * (1 + points.shape[1] * 2.0**-22)

    def offer(self, closeness: Tensor, rows: slice, columns: slice) -> None:
        """Take over what is nearer; `closeness` [rows, columns] is half the negative squared distance, screened."""
        top = closeness.amax(1)
        limit = self.closest[rows] - self.slack
        hopeful = (top > limit).nonzero()[:, 0]
        if not len(hopeful):
            return
        self.closest[rows] = torch.maximum(self.closest[rows], top)
        limit = self.closest[rows][hopeful] - self.slack
        which, column = (closeness[hopeful] > limit[:, None]).nonzero().unbind(1)
        row, column = hopeful[which] + rows.start, column + columns.start
        squared = squared_distances(self.points, row, column)
        nearest = torch.full_like(self.squared[rows], math.inf).scatter_reduce_(0, row - rows.start, squared, "amin")
        tied = squared == nearest[row - rows.start]
        first = torch.full_like(self.index[rows], len(self.points))
        first.scatter_reduce_(0, row[tied] - rows.start, column[tied], "amin")
        better = nearest < self.squared[rows]
        self.index[rows] = torch.where(better, first, self.index[rows])
        self.squared[rows] = torch.where(better, nearest, self.squared[rows])
        # Nothing is nearer than a copy: without this, many copies would all be measured against each other.
        self.closest[rows] = torch.where(self.squared[rows] == 0, math.inf, self.closest[rows])


def squared_distances(points: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """float64: exact for points on the grid."""
    found = [
        (points[left].double() - points[right].double()).square_().sum(1)
        for left, right in zip(rows.split(MEASURED), columns.split(MEASURED), strict=True)  # type: ignore[no-untyped-call]
    ]
    return torch.cat(found)


CANDIDATES, CELLS_SEEN = 8, 32


def _approximate(points: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates of an inverted file with 4 sqrt(N) cells, measured exactly. faiss seeds itself with a constant."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError('search = "faiss" needs faiss: pip install "personae[faiss]"') from error
    content = points.cpu().numpy()
    cells = max(1, int(4 * math.sqrt(len(content))))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(content.shape[1]), content.shape[1], cells)
    index.train(content)
    index.add(content)
    index.nprobe = CELLS_SEEN
    found = torch.from_numpy(index.search(content, min(CANDIDATES, len(content)))[1])
    rows = torch.arange(len(content))[:, None].expand_as(found)
    absent = (found < 0) | (found == rows)
    squared = squared_distances(points.cpu(), rows.reshape(-1), found.clamp(min=0).reshape(-1)).view_as(found)
    squared = squared.masked_fill(absent, math.inf)
    nearest = squared.amin(1, keepdim=True)
    column = found.masked_fill(squared > nearest, len(content)).amin(1)
    # A row alone in its cells has no candidate: it stays by itself, infinitely far from a neighbour in name.
    column = torch.where(nearest[:, 0].isinf(), (rows[:, 0] + 1) % len(content), column)
    return column.to(points.device), nearest[:, 0].to(points.device)
