"""All comparisons between two sets of images, tile by tile, so that nobody has to hold them all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.core.exact import Floats, Integers, pair_scores, unit_on_grid

ROWS, COLUMNS = 512, 512  # of a tile: large enough for a fast product, small enough to stay in the cache of a CPU
ON_GPU = 4, 16  # times as many: there the number of tiles counts


@dataclass(frozen=True)
class Tile:
    """Some rows against some columns; one that is not mixed holds impostor pairs alone."""

    rows: slice
    columns: slice
    mixed: bool


class Crossing:
    """Every row against every other image, and, where `itself` says so, every unordered pair of different rows.

    The columns are the rows themselves (where these are compared) and then the others, each sorted by identity, so that
    the genuine pairs of neighbouring rows lie in one stretch of either, and all other tiles need no look at the labels.
    """

    def __init__(
        self, rows: Tensor, row_labels: Tensor, others: tuple[Tensor, Tensor] | None = None, *, itself: bool = True
    ) -> None:
        sides = [_by_identity(rows, row_labels)] + ([] if others is None else [_by_identity(*others)])
        self.itself = itself
        self.first_other = len(row_labels) if itself else 0
        columns = sides if itself else sides[1:]
        self.columns = unit_on_grid(columns[0][0] if len(columns) == 1 else torch.cat([side[0] for side in columns]))
        self.column_labels = np.concatenate([labels for _, labels in columns])
        self.rows = self.columns[: self.first_other] if itself else unit_on_grid(sides[0][0])
        self.row_labels = sides[0][1]
        self.genuine_pairs, self.impostor_pairs = self._count()

    def tiles(self, genuine: bool = False) -> Iterator[Tile]:
        """Every pair is in exactly one tile, or every genuine pair."""
        taller, wider = (1, 1) if self.columns.device.type == "cpu" else ON_GPU
        # Where only the genuine pairs count, low tiles have less of the others about them.
        width, least = COLUMNS * wider, max(1, ROWS * taller // (8 if genuine else 1))
        height = max(least, least * width // max(1, len(self.column_labels)))
        for start in range(0, len(self.row_labels), height):
            rows = slice(start, min(start + height, len(self.row_labels)))
            of_rows, of_others = self._stretches(self.row_labels[rows.start], self.row_labels[rows.stop - 1])
            # The pairs of a row with the rows before it were theirs.
            edges = [start, of_rows.stop, self.first_other, of_others.start, of_others.stop, len(self.column_labels)]
            if not self.itself:
                edges[:2] = [0, 0]
            for (begin, end), mixed in zip(pairwise(edges), (True, False, False, True, False), strict=True):
                if begin < end and (mixed or not genuine):
                    # The last one is wider rather than narrow, and products are fastest with round numbers of columns.
                    cuts = [begin, *range(begin + width, end - width // 2, width), end]
                    yield from (Tile(rows, slice(left, right), mixed) for left, right in pairwise(cuts))

    def of_kind(self, tile: Tile, genuine: bool) -> npt.NDArray[np.bool_]:
        """Which pairs of the flattened tile are of one kind."""
        compare = np.equal if genuine else np.not_equal
        wanted: npt.NDArray[np.bool_] = compare(self.row_labels[tile.rows, None], self.column_labels[tile.columns])
        if self.itself:
            rows, columns = (np.arange(side.start, side.stop) for side in (tile.rows, tile.columns))
            wanted &= rows[:, None] < columns
        return wanted.ravel()

    def exact(self, tile: Tile) -> Floats:
        """The scores of a tile, flattened."""
        return (self.rows[tile.rows] @ self.columns[tile.columns].T).float().flatten().cpu().numpy()

    def screened(self, tile: Tile) -> Tensor:
        """The same within `screening_error`, in little more than half the time, and still on its device."""
        rows, columns = self._float32
        return (rows[tile.rows] @ columns[tile.columns].T).flatten()

    def rescored(self, tiles: Sequence[Tile], which: Integers, places: Integers) -> Floats:
        """The scores at some places of these tiles, flattened; `which` are the numbers of their tiles."""
        corners = np.array([(tile.rows.start, tile.columns.start) for tile in tiles], dtype=np.int64)
        widths = np.array([tile.columns.stop - tile.columns.start for tile in tiles], dtype=np.int64)
        down, along = np.divmod(places, widths[which])
        return pair_scores(self.rows, corners[which, 0] + down, self.columns, corners[which, 1] + along)

    def exact_scores(self, genuine: bool) -> Iterator[tuple[Tile, Integers | None, Floats]]:
        """The scores of one kind tile by tile, and their places in the tile (None where they fill it)."""
        for tile in self.tiles(genuine):
            if tile.mixed:
                places = np.flatnonzero(self.of_kind(tile, genuine))
                yield tile, places, self.exact(tile)[places]
            elif not genuine:
                yield tile, None, self.exact(tile)

    def screened_impostors(self) -> Iterator[tuple[Tile, Tensor]]:
        """The screened scores tile by tile; in the place of a pair that is not an impostor pair is minus infinity."""
        for tile in self.tiles():
            scores = self.screened(tile)
            if tile.mixed:
                others = torch.from_numpy(~self.of_kind(tile, genuine=False))
                scores.masked_fill_(others.to(scores.device), -torch.inf)
            yield tile, scores

    def sample(self, side: int) -> Floats:
        """Screened scores of at most `side` rows and columns, evenly spread over the identities, as a matrix.

        In the place of a pair that is not an impostor pair is minus infinity. The columns lie half-way between the
        rows, so that where rows are compared with each other no pair is there twice.
        """
        at, across = _spread(len(self.row_labels), side, 0), _spread(len(self.column_labels), side, 0.5)
        rows, columns = self._float32
        scores = (rows[at] @ columns[across].T).cpu().numpy()
        scores[self.row_labels[at, None] == self.column_labels[across]] = -np.inf
        return scores

    @cached_property
    def _float32(self) -> tuple[Tensor, Tensor]:
        columns = self.columns.float()
        return columns[: self.first_other] if self.itself else self.rows.float(), columns

    def _stretches(self, first: int, last: int) -> tuple[slice, slice]:
        """Where among the columns, those that are rows and the others, the identities from `first` to `last` are."""
        parts = self.column_labels[: self.first_other], self.column_labels[self.first_other :]
        (a, b), (c, d) = ((np.searchsorted(p, first), np.searchsorted(p, last, side="right")) for p in parts)
        return slice(int(a), int(b)), slice(self.first_other + int(c), self.first_other + int(d))

    def _count(self) -> tuple[int, int]:
        labels, rows = np.unique(self.row_labels, return_counts=True)
        others = self.column_labels[self.first_other :]
        of_others = np.searchsorted(others, labels, side="right") - np.searchsorted(others, labels)
        among_rows = int(rows @ (rows - 1)) // 2 if self.itself else 0
        count = len(self.row_labels)
        pairs = (count * (count - 1) // 2 if self.itself else 0) + count * len(others)
        genuine = among_rows + int(rows @ of_others)
        return genuine, pairs - genuine


def _spread(count: int, most: int, shift: float) -> Integers:
    """At most so many positions, evenly spread, shifted by a part of the distance between them."""
    taken = min(count, most)
    return np.floor((np.arange(taken) + shift) * count / max(1, taken)).astype(np.int64)


def _by_identity(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Integers]:
    order = torch.argsort(labels, stable=True)
    return embeddings[order.to(embeddings.device)], labels[order].cpu().numpy()
