"""Scores at given places of the ranking of all impostors, found with float32 products and proven with exact ones.

A float32 product is within e of the score (`screening_error`), hence so is the value at any place of the ranking by
float32 products from the value at that place of the true one. What is more than 2e above the former is above the
latter for certain, and what is more than 2e below is below. Only the few pairs in between are scored exactly.

A sample tells roughly where a place lies. One pass over all pairs counts those above that interval and collects those
inside. Where an interval turns out too wide to be collected, the pass counts at 64 steps across it instead, and the
next one looks at one step; where the place is outside, the next pass looks there. So the sample decides how long it
takes, never what comes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from personae.core.exact import Floats, Integers, screening_error
from personae.core.precision import plain_float32
from personae.evaluation.crossing import Crossing, Tile

SAMPLE = 512  # rows and columns
CANDIDATES = 2**23  # pairs that all searches together may collect
STEPS = 64
BEYOND = 2.0  # no cosine is there


def impostors_at(crossing: Crossing, places: Sequence[int]) -> dict[int, np.float32]:
    """The scores at these places, the highest being at 0; a place is missing where too many pairs nearly tie there."""
    error = screening_error(crossing.rows.shape[1])
    with plain_float32():
        sample = np.sort(crossing.sample(SAMPLE))
        different = sorted(set(places))
        limit = max(1, CANDIDATES // max(1, len(different)))
        searches = [_Search.begin(place, crossing.impostor_pairs, sample, error, limit) for place in different]
        found: dict[int, np.float32] = {}
        while searches:
            lowest = min(float(search.edges[0]) for search in searches)
            for tile, at, scores in crossing.screened_impostors(lowest):
                for search in searches:
                    search.look(tile, at, scores)
            found |= {search.place: score for search in searches if (score := search.result(crossing)) is not None}
            searches = [search.next() for search in searches if search.place not in found and not search.hopeless]
    return found


@dataclass(eq=False)
class _Search:
    """The pairs whose products are in [low, high), of which there are about `expected`."""

    place: int
    pairs: int
    low: float
    high: float
    expected: float
    error: float
    limit: int
    edges: Floats = field(init=False)
    at_least: Integers = field(init=False)
    collected: int = 0
    found: list[tuple[Tile, Floats, npt.NDArray[np.int32]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        low, high = max(self.low - self._room, -BEYOND), min(self.high + self._room, BEYOND)
        steps = 1 if self.expected <= self.limit else STEPS
        self.edges = np.linspace(low, high, steps + 1).astype(np.float32)
        self.at_least = np.zeros(steps + 1, dtype=np.int64)

    @classmethod
    def begin(cls, place: int, pairs: int, sample: Floats, error: float, limit: int) -> "_Search":
        """Where the sample says it is, give or take a sixteenth (images of a sample are not independent pairs)."""
        rank = place / pairs * len(sample)
        slack = 16 + 6 * rank**0.5 + min(rank, len(sample) - rank) / 16
        above, below = int(rank - slack), int(rank + slack) + 1
        low = float(sample[-1 - below]) if below < len(sample) else -BEYOND
        high = float(sample[-1 - above]) if above > 0 else BEYOND
        share = (min(below, len(sample)) - max(above, 0)) / max(1, len(sample))
        return cls(place, pairs, low, high, share * pairs, error, limit)

    @property
    def _room(self) -> float:
        """For the 2e on either side of the place, and for the rounding of the edges."""
        return 4 * self.error

    @property
    def collecting(self) -> bool:
        return len(self.edges) == 2

    @property
    def hopeless(self) -> bool:
        """Even the narrowest interval that could decide holds more than may be collected."""
        return not self.collecting and float(self.edges[-1] - self.edges[0]) <= 16 * self.error

    def look(self, tile: Tile, at: Integers, scores: Floats) -> None:
        if not self.collecting:
            self.at_least += [np.count_nonzero(scores >= edge) for edge in self.edges]
            return
        inside = scores >= self.edges[0]
        if not (count := np.count_nonzero(inside)):
            return
        above = scores >= self.edges[1]
        beyond = np.count_nonzero(above)
        self.at_least += [count, beyond]
        self.collected += int(count - beyond)
        if self.collected > 2 * self.limit:  # the sample was far off
            self.found.clear()
        elif count > beyond:
            inside ^= above
            chosen = np.flatnonzero(inside)  # where few are inside, much faster than to select by the mask
            self.found.append((tile, scores[chosen], at[chosen].astype(np.int32)))

    def result(self, crossing: Crossing) -> np.float32 | None:
        """The score at the place, if the interval holds everything that could be it."""
        inside = self.place - int(self.at_least[-1])
        if not self.collecting or self.collected > 2 * self.limit or not 0 <= inside < self.collected:
            return None
        near = float(_highest(np.concatenate([products for _, products, _ in self.found]), inside))
        bottom, top = near - 2 * self.error, near + 2 * self.error
        low, high = self.edges.tolist()
        if (low > -BEYOND and bottom < low) or (high < BEYOND and top >= high):
            return None
        scores = []
        for tile, products, places in self.found:
            exactly = products.astype(np.float64)
            inside -= int(np.count_nonzero(exactly > top))
            undecided = places[(exactly >= bottom) & (exactly <= top)]
            scores.append(crossing.rescored(tile, undecided.astype(np.int64)))
        return _highest(np.concatenate(scores), inside)

    def next(self) -> "_Search":
        """A search of where the place must be after this one, with at most as many pairs as are known to be there."""
        edges = np.array([-BEYOND, *self.edges, BEYOND])
        at_least = np.array([self.pairs, *self.at_least, 0])
        step = np.count_nonzero(at_least > self.place)  # so many edges are not above the place
        low, high = edges[step - 1 : step + 1].tolist()
        outside = np.searchsorted(edges, low - self._room, side="right") - 1, np.searchsorted(edges, high + self._room)
        most, least = at_least[np.clip(outside, 0, len(edges) - 1)].tolist()
        return _Search(self.place, self.pairs, low, high, most - least, self.error, self.limit)


def _highest(scores: Floats, place: int) -> np.float32:
    at = len(scores) - 1 - place
    value: np.float32 = np.partition(scores, at)[at]
    return value
