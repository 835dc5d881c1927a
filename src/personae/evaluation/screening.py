"""Scores at given places of the ranking of all impostors, found with float32 products and proven with exact ones.

A float32 product is within e of the score (`screening_error`), and so is the value at any place of the ranking by
float32 products from the value at that place of the true one. What is more than 2e above the former is above the
latter for certain, and what is more than 2e below is below. Only the few pairs in between are scored exactly; mostly
half of these will do, because in truth products err far less than they could.

A sample tells roughly where a place lies. One pass over all pairs counts those above that interval and collects those
inside, for all places at once. Where an interval is too wide to be collected, the pass counts at 64 steps across it
instead, and the next one looks at one step; where the place is outside, the next pass looks there. So the sample
decides how long it takes, never what comes out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.core.exact import Floats, screening_error
from personae.core.precision import plain_float32
from personae.evaluation.crossing import Crossing, Tile

SAMPLED = 200  # one pair in so many, but
SAMPLE = 512, 2048  # no fewer rows and columns than these, and no more
CANDIDATES = 2**23  # pairs that a pass may collect
TOGETHER = 2**17  # pairs so few that places among them are not worth intervals of their own
STEPS = 64
BEYOND = 2.0  # no cosine is there


def impostors_at(crossing: Crossing, places: Sequence[int]) -> dict[int, np.float32]:
    """The scores at these places, the highest being at 0; a place is missing where too many pairs nearly tie there."""
    pairs, error = crossing.impostor_pairs, screening_error(crossing.rows.shape[1])
    different = sorted(set(places))
    limit = max(1, CANDIDATES // max(1, len(different)))
    found: dict[int, np.float32] = {}
    with plain_float32():
        sample = _Sample(crossing.sample(int(np.clip(math.sqrt(pairs / SAMPLED), *SAMPLE))))
        searches = [_Search(*interval, error, limit) for interval in sample.intervals(different, pairs)]
        while searches:
            over_all = _Pass(searches)
            for tile, scores in crossing.screened_impostors():
                over_all.look(tile, scores)
            found |= over_all.found(crossing, error)
            searches = [
                search.after(over_all.at_least, pairs)
                for search in searches
                if search.place not in found and not search.hopeless
            ]
    return found


class _Sample:
    """Scores of some pairs, by rows and columns."""

    def __init__(self, scores: Floats) -> None:
        self.scores = scores
        self.falling = -np.sort(-scores[scores >= -BEYOND])

    def intervals(self, places: Sequence[int], pairs: int) -> list[tuple[int, float, float, float]]:
        """Of each place, which rise, between which scores it should lie, and how many pairs should be there too."""
        count = len(self.falling)
        groups: list[tuple[list[int], int, int]] = []
        for place in places:
            rank = place / pairs * count
            slack = 16 + 5 * self._deviation(int(rank))
            first, last = max(int(rank - slack), 0), min(int(rank + slack) + 1, count)
            if groups and (last - groups[-1][1]) * pairs <= TOGETHER * count:
                before, first, _ = groups.pop()
                groups.append(([*before, place], first, last))
            else:
                groups.append(([place], first, last))
        intervals = []
        for together, first, last in groups:
            high = float(self.falling[first]) if first else BEYOND
            low = float(self.falling[last]) if last < count else -BEYOND
            intervals += [(place, low, high, (last - first) / max(1, count) * pairs) for place in together]
        return intervals

    def _deviation(self, rank: int) -> float:
        """Of the number of scores above that rank, had other rows and columns been drawn: images are not alike."""
        if rank >= len(self.falling):
            return 0.0
        reached = (self.scores >= self.falling[rank]).astype(np.float32)
        return math.sqrt(sum(reached.sum(axis=axis).var() * reached.shape[1 - axis] for axis in (0, 1)))


@dataclass(frozen=True, eq=False)
class _Search:
    """A place which should be between two products, where there are about `expected` more."""

    place: int
    low: float
    high: float
    expected: float
    error: float
    limit: int

    @property
    def edges(self) -> list[float]:
        """Where to count: at the ends if what is between them can be collected, or else at steps in between too."""
        low, high = max(self.low - self._room, -BEYOND), min(self.high + self._room, BEYOND)
        steps = 1 if self.collecting else STEPS
        return np.linspace(low, high, steps + 1).astype(np.float32).tolist()  # type: ignore[no-any-return]

    @property
    def collecting(self) -> bool:
        return self.expected <= self.limit

    @property
    def hopeless(self) -> bool:
        """Even the narrowest interval that could decide holds more than may be collected."""
        return not self.collecting and self.edges[-1] - self.edges[0] <= 16 * self.error

    @property
    def _room(self) -> float:
        """For the 2e on either side of the place, and for the rounding of the edges."""
        return 4 * self.error

    def after(self, counted: dict[float, int], pairs: int) -> "_Search":
        """A search of where the place must be after a pass, with at most as many pairs as are known to be there."""
        edges = np.array([-BEYOND, *self.edges, BEYOND])
        at_least = np.array([pairs, *(counted[edge] for edge in self.edges), 0])
        step = np.count_nonzero(at_least > self.place)  # so many edges are not above the place
        low, high = edges[step - 1 : step + 1].tolist()
        outside = np.searchsorted(edges, low - self._room, side="right") - 1, np.searchsorted(edges, high + self._room)
        most, least = at_least[np.clip(outside, 0, len(edges) - 1)].tolist()
        return _Search(self.place, low, high, most - least, self.error, self.limit)


class _Pass:
    """How many products reach each edge of the searches, and those that lie between edges of one that collects."""

    def __init__(self, searches: Sequence[_Search]) -> None:
        self.searches = [search for search in searches if search.collecting]
        self.at_least = dict.fromkeys(sorted({edge for search in searches for edge in search.edges}), 0)
        self._turns = _ends_of_union((low, high) for low, high in (search.edges for search in self.searches))
        self._held: list[tuple[Tile, Floats, npt.NDArray[np.int32]]] = []
        self._collected, self._most = 0, 2 * sum(search.limit for search in self.searches)

    def look(self, tile: Tile, scores: Tensor) -> None:
        here = _fastest(scores)
        inside = None
        for edge in self.at_least:
            if edge >= BEYOND:
                break
            reached = here >= edge
            count = _count(reached)
            if not count:
                break
            self.at_least[edge] += count
            if inside is None and edge in self._turns:
                inside = reached
            elif edge in self._turns:  # from there on, what was inside is outside, and the other way around
                inside ^= reached
        if inside is None:
            return
        places = _places(inside)
        self._collected += len(places)
        if self._complete:
            self._held.append((tile, _array(here[places]), _array(places).astype(np.int32)))
        else:
            self._held.clear()

    @property
    def _complete(self) -> bool:
        """Or the sample was far off, and there was more than can be held."""
        return self._collected <= self._most

    def found(self, crossing: Crossing, error: float) -> dict[int, np.float32]:
        """The scores at the places of which everything that could be it was collected."""
        if not self._held:
            return {}
        tiles, products, positions = zip(*self._held, strict=True)
        until = np.cumsum([len(part) for part in products])
        values, at = np.concatenate(products), np.concatenate(positions)
        indices = {}  # from below, among what was collected
        for search in self.searches:
            low, high = search.edges
            above = search.place - self.at_least[high]
            if 0 <= above < self.at_least[low] - self.at_least[high]:
                indices[search] = int(np.count_nonzero(values < high)) - 1 - above
        ranked = np.partition(values, list(indices.values())) if indices else values
        found = {}
        for search, index in indices.items():
            low, high = search.edges
            near = float(ranked[index])
            if (low > -BEYOND and near - 2 * error < low) or (high < BEYOND and near + 2 * error >= high):
                continue
            # What is further than `width` from `near` scores more than `width - e` from it. So if the score at the
            # place is found within that, it is the one; with 2e it always is.
            for width in (1.1 * error, 2 * error):
                bottom, top = _outwards(near - width, near + width)
                undecided = np.flatnonzero((values >= bottom) & (values <= top))
                which = np.searchsorted(until, undecided, side="right")
                scores = crossing.rescored(tiles, which, at[undecided])
                inside = index - int(np.count_nonzero(values < bottom))
                score = np.partition(scores, inside)[inside]
                if abs(float(score) - near) <= width - error:
                    break
            found[search.place] = score
        return found


def _ends_of_union(intervals: Iterable[tuple[float, float]]) -> set[float]:
    """Where what lies in any of these begins and ends."""
    ends: list[float] = []
    for low, high in sorted(intervals):
        if ends and low <= ends[-1]:
            ends[-1] = max(ends[-1], high)
        else:
            ends += [low, high]
    return set(ends)


def _outwards(bottom: float, top: float) -> tuple[np.float32, np.float32]:
    """Float32 values just outside."""
    infinite = np.float32(np.inf)
    return np.nextafter(np.float32(bottom), -infinite), np.nextafter(np.float32(top), infinite)


def _fastest(scores: Tensor) -> Any:
    """On a CPU, NumPy compares and finds several times faster."""
    return scores.numpy() if scores.device.type == "cpu" else scores


def _count(mask: Any) -> int:
    return int(torch.count_nonzero(mask) if isinstance(mask, Tensor) else np.count_nonzero(mask))


def _places(mask: Any) -> Any:
    return torch.nonzero(mask).flatten() if isinstance(mask, Tensor) else mask.nonzero()[0]


def _array(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, Tensor) else values
