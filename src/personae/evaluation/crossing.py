"""All comparisons between two sets of images, tile by tile, so that nobody has to hold them all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from personae.core.exact import Floats, Integers, pair_scores, unit_on_grid

ROWS, COLUMNS = 256, 4096  # of a tile: large enough for a fast product, small enough to stay in the cache


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

    def tiles(self, least_rows: int = ROWS) -> Iterator[Tile]:
        """Every pair is in exactly one tile."""
        height = max(least_rows, least_rows * COLUMNS // max(1, len(self.column_labels)))
        for start in range(0, len(self.row_labels), height):
            rows = slice(start, min(start + height, len(self.row_labels)))
            of_rows, of_others = self._stretches(self.row_labels[rows.start], self.row_labels[rows.stop - 1])
            # The pairs of a row with the rows before it were theirs.
            edges = [start, of_rows.stop, self.first_other, of_others.start, of_others.stop, len(self.column_labels)]
            if not self.itself:
                edges[:2] = [0, 0]
            for (begin, end), mixed in zip(pairwise(edges), (True, False, False, True, False), strict=True):
                for left in range(begin, end, COLUMNS):
                    yield Tile(rows, slice(left, min(left + COLUMNS, end)), mixed)

    def places(self, tile: Tile, genuine: bool) -> Integers:
        """Where in the flattened tile the pairs of one kind are."""
        wanted = (self.row_labels[tile.rows, None] == self.column_labels[tile.columns]) == genuine
        if self.itself:
            rows, columns = (np.arange(side.start, side.stop) for side in (tile.rows, tile.columns))
            wanted &= rows[:, None] < columns
        return np.flatnonzero(wanted)

    def exact(self, tile: Tile) -> Floats:
        """The scores of a tile, flattened."""
        return (self.rows[tile.rows] @ self.columns[tile.columns].T).float().flatten().cpu().numpy()

    def screened(self, tile: Tile) -> Tensor:
        """The same within `screening_error`, in little more than half the time, and still on its device."""
        rows, columns = self._float32
        return (rows[tile.rows] @ columns[tile.columns].T).flatten()

    def rescored(self, tile: Tile, places: Integers) -> Floats:
        """The scores at some places of the flattened tile."""
        wide = self.columns[tile.columns]
        rows, columns = np.divmod(places, len(wide))
        return pair_scores(self.rows[tile.rows], rows, wide, columns)

    def exact_scores(self, genuine: bool) -> Iterator[tuple[Tile, Integers | None, Floats]]:
        """The scores of one kind tile by tile, and their places in the tile (None where they fill it)."""
        # Where only the genuine pairs count, low tiles have less of the others about them.
        for tile in self.tiles(ROWS // 4 if genuine else ROWS):
            if tile.mixed:
                places = self.places(tile, genuine)
                yield tile, places, self.exact(tile)[places]
            elif not genuine:
                yield tile, None, self.exact(tile)

    def screened_impostors(self, above: float) -> Iterator[tuple[Tile, Integers, Floats]]:
        """The screened scores that are not below `above`, and their places in the tile."""
        for tile in self.tiles():
            scores = self.screened(tile)
            impostors = self.places(tile, genuine=False) if tile.mixed else None
            found, values = not_below(scores if impostors is None else scores[impostors], above)
            if len(found):
                yield tile, found if impostors is None else impostors[found], values

    def sample(self, side: int) -> Floats:
        """Screened scores of impostors among at most `side` rows and columns, evenly spread over the identities."""
        at = np.linspace(0, len(self.row_labels) - 1, min(side, len(self.row_labels))).round().astype(np.int64)
        across = (
            np.linspace(0, len(self.column_labels) - 1, min(side, len(self.column_labels))).round().astype(np.int64)
        )
        rows, columns = self._float32
        scores = (rows[at] @ columns[across].T).cpu().numpy()
        impostors: Floats = scores[self.row_labels[at, None] != self.column_labels[across]]
        return impostors

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


def not_below(scores: Tensor, bound: float) -> tuple[Integers, Floats]:
    """Where in a row of scores those are that reach the bound, and what they are."""
    if scores.device.type == "cpu":  # NumPy finds them several times faster
        here = scores.numpy()
        found = np.flatnonzero(here >= np.float32(bound))
        return found, here[found]
    places = torch.nonzero(scores >= bound).flatten()
    return places.cpu().numpy(), scores[places].cpu().numpy()


def _by_identity(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Integers]:
    order = torch.argsort(labels, stable=True)
    return embeddings[order.to(embeddings.device)], labels[order].cpu().numpy()
