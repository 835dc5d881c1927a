"""First neighbours: of every row the nearest other one, the same for any block size, thread count or device.

Coordinates are rounded to multiples of 2^-24 of a power of two that no row is longer than. float32 holds such numbers
as they are, and float64 every partial sum of squared differences, so the distance of two rows does not depend on the
order of summation. Matrix products, block by block over half of the pairs, only screen: whatever rounding could have
kept from being the nearest is measured exactly. They are in bfloat16 where the processor multiplies that faster, and in
float32 where bfloat16 does not tell enough rows apart. Of equally near rows the first one is the neighbour.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.precision import plain_float32
from personae.errors import ConfigError, DataError, Diverged
from personae.words import counted

Metric = Literal["euclidean", "cosine"]
Search = Literal["auto", "exact", "faiss"]

EXACT_UP_TO = 200_000  # rows, by default
GRID = 2.0**24
BLOCK = 1024
MEASURED = 2**10  # pairs measured at once, in memory that the cache holds
CROWDED = 2**12  # pairs of two blocks that take as long to measure as to screen all of them in float32


@dataclass(frozen=True, eq=False)
class Neighbours:
    index: Tensor  # int64 [N]: the nearest other row
    distance: Tensor  # float64 [N]: how far it is


@torch.no_grad()
def first_neighbours(
    rows: Tensor, metric: Metric = "euclidean", *, search: Search = "auto", block: int = BLOCK
) -> Neighbours:
    """The nearest other row of each of `rows` [N, D], N at least 2.

    The cosine distance is 1 - cos. `search` exact compares all pairs, in the memory of one block; faiss looks into the
    nearest cells of an inverted file only, which is for more rows than time allows to compare, and may miss some. auto
    is exact up to 200,000 rows and faiss beyond.
    """
    if len(rows) < 2:
        raise DataError(f"{counted(len(rows), 'image has', 'images have')} no neighbours; clustering takes at least 2")
    exact = search == "exact" or (search == "auto" and len(rows) <= EXACT_UP_TO)
    points, scale = _on_grid(rows, metric)
    with plain_float32():
        index, squared = _exact(points, block) if exact else _approximate(points)
    return Neighbours(index, squared / 2 if metric == "cosine" else squared.sqrt() * scale)


def _on_grid(rows: Tensor, metric: Metric) -> tuple[Tensor, float]:
    """float32 rows of a length of at most one, with coordinates on the grid, and what they were divided by."""

    def exact() -> Iterator[Tensor]:
        """Part by part, since float64 rows would take twice the memory of the result."""
        for part in _parts(rows):
            yield F.normalize(part.double(), dim=1) if metric == "cosine" else part.double()

    longest = max(float(part.norm(dim=1).max()) for part in exact())
    if not math.isfinite(longest):
        raise Diverged("the features are not finite, so they cannot be clustered: training has diverged")
    # A length of one may come out a hair longer, which must not double the scale.
    scale = 2.0 ** math.ceil(math.log2(longest) - 1e-9) if longest > 0 else 1.0
    points = torch.empty(rows.shape, device=rows.device)
    for place, part in zip(_parts(points), exact(), strict=True):
        place.copy_((part / scale).mul_(GRID).round_().div_(GRID))
    return points, scale


def _exact(points: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Index and squared distance, from the products of all pairs of blocks, each pair once."""
    found = _Nearest(points)
    screens = [_Screen(points, kind) for kind in _formats(points.device)]
    blocks = [slice(start, min(start + block, len(points))) for start in range(0, len(points), block)]
    # First each with itself: images of a person are often side by side, and after that few others have to be measured.
    for here, there in [(here, here) for here in blocks] + list(itertools.combinations(blocks, 2)):
        _compare(found, screens, here, there)
    return found.index, found.squared


def _compare(found: "_Nearest", screens: "list[_Screen]", here: slice, there: slice) -> None:
    """Offer two blocks to each other, once more in the next format where this one leaves too many pairs open."""
    screen, *finer = screens
    halves = screen.half_squares(here, there)
    if here == there:
        halves.fill_diagonal_(math.inf)
    crowded = CROWDED if finer else math.inf
    taken = found.offer(screen, halves, here, there, 0, crowded)
    if here != there:
        taken &= found.offer(screen, halves, there, here, 1, crowded)
    if not taken:
        _compare(found, finer, here, there)


def _formats(device: torch.device) -> list[torch.dtype]:
    """Of numbers to screen with, from the coarsest on."""
    onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    fast = device.type == "cpu" and onednn and torch.cpu._is_avx512_bf16_supported()
    return [torch.bfloat16, torch.float32] if fast else [torch.float32]


class _Screen:
    """Half the squared distances of rows by matrix products of one format, and how wrong they may be.

    |x - y|^2 / 2 = |x|^2 / 2 + |y|^2 / 2 - x·y = (-x, |x|^2 / 2, 1)·(y, 1, |y|^2 / 2)
    """

    def __init__(self, points: Tensor, kind: torch.dtype) -> None:
        self.points, self.kind = points, kind
        self.product = torch.empty(0, dtype=kind, device=points.device)
        self.left: tuple[slice, Tensor] | None = None

    @cached_property
    def right(self) -> Tensor:
        """The rows, ones, and half the squared lengths, these as sums of numbers of the format."""
        lengths = torch.cat([part.double().square_().sum(1) for part in _parts(self.points)])
        pieces = _pieces(lengths.div(2).float(), self.kind)
        return torch.cat([self.points.to(self.kind), torch.ones_like(pieces), pieces], 1)

    @cached_property
    def absolute(self) -> float:
        """How wrong it may be, whatever it is."""
        # With u = 2^-24: n products of a total of two at most and their n sums, in any order; halves, and limits.
        count, size = self.right.shape[1], self.points.shape[1]
        sums = 2 * (count + 16) * 2.0**-24 * (1 + count * 2.0**-22)
        # Without what was cut off, r of x and s of y, x·y is less by x·s + r·(y - s).
        both = zip(_parts(self.points), _parts(self.right[:, :size]), strict=True)
        cut = max(float((exact - rounded).norm(dim=1).max()) for exact, rounded in both)
        return sums + cut * (2 + cut)

    @property
    def relative(self) -> float:
        """How wrong it may be besides, for its size: a sum and a limit are rounded to the format."""
        return 0.0 if self.kind == torch.float32 else 2.0**-8

    def half_squares(self, here: slice, there: slice) -> Tensor:
        """[here, there], until the next ones are asked for."""
        if self.left is None or self.left[0] != here:
            size, count = self.points.shape[1], self.right.shape[1]
            rows, ones, pieces = self.right[here].tensor_split((size, (size + count) // 2), 1)
            self.left = here, torch.cat([-rows, pieces, ones], 1)
        right = self.right[there]
        return torch.mm(self.left[1], right.T, out=self.product.resize_(len(self.left[1]), len(right)))

    def at_most(self, value: Tensor) -> Tensor:
        """What the true value of one so screened cannot exceed."""
        return value + self.relative * value.abs() + self.absolute

    def seen_as(self, value: Tensor) -> Tensor:
        """What the screened value of a true one that is no greater than this cannot exceed."""
        return (value + self.absolute) / (1 - self.relative)


def _ordered(values: Tensor) -> Tensor:
    """Something in the order of these numbers, but for those that rounding has made negative, which come first.

    bfloat16 numbers are compared many times faster as the integers that their bits are.
    """
    return values.view(torch.int16) if values.dtype == torch.bfloat16 else values


def _pieces(values: Tensor, kind: torch.dtype) -> Tensor:
    """float32 numbers [N] as sums of numbers of a format [N, 1 or 3], exactly."""
    pieces = list[Tensor]()
    for _ in range(1 if kind == torch.float32 else 3):
        pieces.append(values.to(kind))
        values = values - pieces[-1]
    return torch.stack(pieces, 1)


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    return rows.split(BLOCK)  # type: ignore[no-any-return, no-untyped-call]


class _Nearest:
    """The nearest row so far."""

    def __init__(self, points: Tensor) -> None:
        self.points = points
        self.index = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        self.squared = torch.full((len(points),), math.inf, dtype=torch.float64, device=points.device)

    def offer(
        self, screen: _Screen, halves: Tensor, rows: slice, columns: slice, side: Literal[0, 1], crowded: float
    ) -> bool:
        """Take over what is nearer, unless a crowd would have to be measured; the rows are the `side` of `halves`."""
        values = _ordered(halves)
        least = values.amin(1 - side).view(halves.dtype).double()
        limit = screen.seen_as(torch.minimum(self.squared[rows] / 2, screen.at_most(least)))
        # Nothing is nearer than a copy: without this, many copies would all be measured against each other.
        copied = (self.squared[rows] == 0) & (self.index[rows] < columns.start)
        hopeful = ((least < limit) & ~copied).nonzero()[:, 0]
        if not len(hopeful):
            return True
        limits = _ordered(limit[hopeful].to(halves.dtype)).unsqueeze(1 - side)
        pairs = (values.index_select(side, hopeful) <= limits).nonzero()
        which, column = pairs[:, side], pairs[:, 1 - side]
        if len(pairs) > crowded:
            return False
        row, column = hopeful[which], column + columns.start
        squared = squared_distances(self.points, row + rows.start, column)
        nearest = torch.full_like(least, math.inf).scatter_reduce_(0, row, squared, "amin")
        tied = squared == nearest[row]
        first = torch.full_like(self.index[rows], len(self.points))
        first.scatter_reduce_(0, row[tied], column[tied], "amin")
        earlier = (nearest == self.squared[rows]) & (first < self.index[rows])
        better = (nearest < self.squared[rows]) | earlier
        self.index[rows] = torch.where(better, first, self.index[rows])
        self.squared[rows] = torch.where(better, nearest, self.squared[rows])
        return True


def squared_distances(points: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """float64: exact for points on the grid."""
    found = [
        points.index_select(0, left).double().sub_(points.index_select(0, right)).square_().sum(1)
        for left, right in zip(rows.split(MEASURED), columns.split(MEASURED), strict=True)  # type: ignore[no-untyped-call]
    ]
    return torch.cat(found)


CANDIDATES, CELLS_SEEN = 8, 32


def _approximate(points: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates of an inverted file with 4 sqrt(N) cells, measured exactly. faiss seeds itself with a constant."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            f"the first neighbours of {len(points):,} images are searched by faiss: "
            'pip install "personae[faiss]", or take the time to compare them all with search = "exact"'
        ) from error
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
