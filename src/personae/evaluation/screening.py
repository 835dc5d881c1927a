"""Scores at given places of the ranking of all impostors, found with float32 products and proven with exact ones.

A float32 product is within e of the score (`screening_error`), hence so is the value at any place of the ranking by
float32 products from the value at that place of the true one. What is more than 2e above the former is above the
latter for certain, and what is more than 2e below is below. Only the few pairs in between are scored exactly; mostly
half of these do, because in truth products err far less than they could.

A sample tells roughly where a place lies. One pass over all pairs counts those above that interval and collects those
inside. Where an interval turns out too wide to be collected, the pass counts at 64 steps across it instead, and the
next one looks at one step; where the place is outside, the next pass looks there. So the sample decides how long it
takes, never what comes out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.core.exact import Floats, Integers, screening_error
from personae.core.precision import plain_float32
from personae.evaluation.crossing import Crossing, Tile

SAMPLED = 200  # one pair in so many, but
SAMPLE = 512, 2048  # no fewer rows and columns than these, and no more
CANDIDATES = 2**23  # pairs that all searches together may collect
TOGETHER = 2**17  # pairs for which it is not worth to look at several places one by one
STEPS = 64
FEW = 8  # where fewer than one score in so many can matter further up, the others are left behind
BEYOND = 2.0  # no cosine is there


def impostors_at(crossing: Crossing, places: Sequence[int]) -> dict[int, np.float32]:
    """The scores at these places, the highest being at 0; a place is missing where too many pairs nearly tie there."""
    error = screening_error(crossing.rows.shape[1])
    with plain_float32():
        sample = _Sample(crossing.sample(int(np.clip((crossing.impostor_pairs / SAMPLED) ** 0.5, *SAMPLE))))
        stretches = sample.stretches(sorted(set(places)), crossing.impostor_pairs)
        limit = max(1, CANDIDATES // max(1, len(stretches)))
        searches = [_Search(*stretch, crossing.impostor_pairs, error, limit) for stretch in stretches]
        found: dict[int, np.float32] = {}
        while searches:
            from_below = sorted(searches, key=lambda search: search.edges[0])
            for tile, scores in crossing.screened_impostors():
                seen = _Seen.all_of(tile, scores)
                for search in from_below:
                    seen = search.look(seen)
            for search in searches:
                found |= search.results(crossing)
            searches = [
                search.next(place)
                for search in searches
                for place in search.places
                if place not in found and not search.hopeless
            ]
    return found


class _Stretch(NamedTuple):
    """Places of the ranking, the scores between which they should lie, and how many pairs should be there too."""

    places: list[int]
    low: float
    high: float
    expected: float


class _Sample:
    """Scores of some pairs, by rows and columns."""

    def __init__(self, scores: Floats) -> None:
        self.scores = scores
        self.falling = -np.sort(-scores[scores >= -BEYOND])

    def stretches(self, places: Sequence[int], pairs: int) -> list[_Stretch]:
        """Where to look for these places, which rise; for several at once, where few pairs lie between them."""
        stretches: list[_Stretch] = []
        first = 0
        count = len(self.falling)
        for place in places:
            rank = place / pairs * count
            slack = 16 + 5 * self._deviation(int(rank))
            begin, end = max(int(rank - slack), 0), min(int(rank + slack) + 1, count)
            together = [place]
            if stretches and (end - first) / count * pairs <= TOGETHER:
                together = [*stretches.pop().places, place]
            else:
                first = begin
            high = float(self.falling[first]) if first else BEYOND
            low = float(self.falling[end]) if end < count else -BEYOND
            stretches.append(_Stretch(together, low, high, (end - first) / max(1, count) * pairs))
        return stretches

    def _deviation(self, rank: int) -> float:
        """Of the number of scores above that rank, had other rows and columns been drawn: images are not alike."""
        if rank >= len(self.falling):
            return 0.0
        reached = (self.scores >= self.falling[rank]).astype(np.float32)
        return math.sqrt(sum(reached.sum(axis=axis).var() * reached.shape[1 - axis] for axis in (0, 1)))


@dataclass(frozen=True, eq=False)
class _Seen:
    """Scores of a tile and, unless they are all of them, their places in it.

    On a CPU they are arrays of NumPy, which compares and finds several times faster there, on a GPU tensors.
    """

    tile: Tile
    scores: Any
    places: Any = None

    @classmethod
    def all_of(cls, tile: Tile, scores: Tensor) -> "_Seen":
        return cls(tile, scores.numpy() if scores.device.type == "cpu" else scores)

    def at_least(self, edge: float) -> Any:
        return self.scores >= edge

    def only(self, mask: Any) -> "_Seen":
        chosen = torch.nonzero(mask).flatten() if isinstance(mask, Tensor) else np.flatnonzero(mask)
        return _Seen(self.tile, self.scores[chosen], chosen if self.places is None else self.places[chosen])

    def held(self) -> tuple[Tile, Floats, npt.NDArray[np.int32]]:
        scores, places = (x.cpu().numpy() if isinstance(x, Tensor) else x for x in (self.scores, self.places))
        return self.tile, scores, places.astype(np.int32)


def _count(mask: Any) -> int:
    return int(torch.count_nonzero(mask) if isinstance(mask, Tensor) else np.count_nonzero(mask))


@dataclass(eq=False)
class _Search:
    """The pairs whose products are in [low, high), of which there are about `expected`."""

    places: list[int]
    low: float
    high: float
    expected: float
    pairs: int
    error: float
    limit: int
    edges: list[float] = field(init=False)  # float32 values, so that it does not matter in what they are compared
    at_least: Integers = field(init=False)
    collected: int = 0
    found: list[tuple[Tile, Floats, npt.NDArray[np.int32]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        low, high = max(self.low - self._room, -BEYOND), min(self.high + self._room, BEYOND)
        steps = 1 if self.expected <= self.limit else STEPS
        self.edges = np.linspace(low, high, steps + 1).astype(np.float32).tolist()
        self.at_least = np.zeros(steps + 1, dtype=np.int64)

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
        return not self.collecting and self.edges[-1] - self.edges[0] <= 16 * self.error

    def look(self, seen: _Seen) -> _Seen:
        """Count and collect; what comes back is enough for a search that begins further up."""
        lowest, *others = self.edges
        reached = seen.at_least(lowest)
        count = _count(reached)
        if count * FEW < len(reached):
            seen, reached = seen.only(reached), None
        if count:
            above = [seen.at_least(edge) for edge in others]
            counts = [count, *map(_count, above)]
            self.at_least += counts
            if self.collecting and count > counts[-1]:
                self._collect(seen.only(~above[-1] if reached is None else reached ^ above[-1]))
        return seen

    def _collect(self, inside: _Seen) -> None:
        self.collected += len(inside.scores)
        if self.collected > 2 * self.limit:  # the sample was far off
            self.found.clear()
        else:
            self.found.append(inside.held())

    def results(self, crossing: Crossing) -> dict[int, np.float32]:
        """The scores at the places for which the interval holds everything that could be it."""
        if not self.collecting or not 0 < self.collected <= 2 * self.limit:
            return {}
        tiles, products, positions = zip(*self.found, strict=True)
        values, at = np.concatenate(products), np.concatenate(positions)
        until = np.cumsum([len(part) for part in products])
        low, high = self.edges
        found = {}
        for place in self.places:
            inside = place - int(self.at_least[-1])
            if not 0 <= inside < len(values):
                continue
            near = float(_highest(values, inside))
            if (low > -BEYOND and near - 2 * self.error < low) or (high < BEYOND and near + 2 * self.error >= high):
                continue
            # What is further than `width` from `near` scores more than `width - e` from it. So if the score at the
            # place is found within that, it is the one; with 2e it always is.
            for width in (1.25 * self.error, 2 * self.error):
                bottom, top = _outwards(near - width, near + width)
                undecided = np.flatnonzero((values >= bottom) & (values <= top))
                which = np.searchsorted(until, undecided, side="right")
                scores = crossing.rescored(tiles, which, at[undecided])
                found[place] = _highest(scores, inside - int(np.count_nonzero(values > top)))
                if abs(float(found[place]) - near) <= width - self.error:
                    break
        return found

    def next(self, place: int) -> "_Search":
        """A search of where a place must be after this one, with at most as many pairs as are known to be there."""
        edges = np.array([-BEYOND, *self.edges, BEYOND])
        at_least = np.array([self.pairs, *self.at_least, 0])
        step = np.count_nonzero(at_least > place)  # so many edges are not above the place
        low, high = edges[step - 1 : step + 1].tolist()
        outside = np.searchsorted(edges, low - self._room, side="right") - 1, np.searchsorted(edges, high + self._room)
        most, least = at_least[np.clip(outside, 0, len(edges) - 1)].tolist()
        return _Search([place], low, high, most - least, self.pairs, self.error, self.limit)


def _highest(scores: Floats, place: int) -> np.float32:
    at = len(scores) - 1 - place
    value: np.float32 = np.partition(scores, at)[at]
    return value


def _outwards(bottom: float, top: float) -> tuple[np.float32, np.float32]:
    """Float32 values that are not inside."""
    infinite = np.float32(np.inf)
    return np.nextafter(np.float32(bottom), -infinite), np.nextafter(np.float32(top), infinite)
