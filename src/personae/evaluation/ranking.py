"""All scores of a crossing in order, from the highest to the lowest, a bounded number at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from personae.core.exact import Floats, Integers
from personae.evaluation.crossing import Crossing

CAPACITY = 2**26  # scores held at a time, 256 MB
BINS = 2**16
SIGN = np.uint32(2**31)


@dataclass(frozen=True, eq=False)
class Ranked:
    """Scores in rising order; `until[i]`, where given, is how many there are before the i-th of different values."""

    values: Floats
    until: Integers | None = None

    def __len__(self) -> int:
        return len(self.values) if self.until is None else int(self.until[-1])

    def below(self, scores: Floats) -> Integers:
        """How many are below each of these."""
        return self._until(np.searchsorted(self.values, scores, side="left"))

    def not_above(self, scores: Floats) -> Integers:
        return self._until(np.searchsorted(self.values, scores, side="right"))

    def at(self, places: Integers) -> Floats:
        """The scores at places counted from the lowest, which is at 0."""
        return self.values[places if self.until is None else np.searchsorted(self.until, places, side="right") - 1]

    def _until(self, positions: Integers) -> Integers:
        return positions if self.until is None else self.until[positions]


@dataclass(frozen=True, eq=False)
class Span:
    """All scores between two bounds."""

    genuine: Ranked
    impostor: Ranked


def spans(crossing: Crossing) -> Iterator[Span]:
    """Neighbouring spans from the highest score to the lowest; equal scores are in the same one.

    Up to `CAPACITY` scores are sorted as they are. Of more, a first pass counts how many share the upper half of the
    bits of a score, and each further one takes as many of the highest as fit. Where too many share even that, they are
    counted by the lower half: then nothing is left to sort.
    """
    if crossing.genuine_pairs + crossing.impostor_pairs <= CAPACITY:
        sizes = {True: crossing.genuine_pairs, False: crossing.impostor_pairs}
        yield Span(*(_sorted(crossing, kind, 0, BINS, sizes[kind]) for kind in (True, False)))
        return
    counts = {kind: _shared(crossing, kind) for kind in (True, False)}
    end = BINS
    while end:
        # Counted from the end, the bins that fit together, or a single one that does not.
        fitting = int(np.searchsorted(np.cumsum((counts[True] + counts[False])[:end][::-1]), CAPACITY, side="right"))
        start = end - max(1, fitting)
        if fitting:
            sizes = {kind: int(counts[kind][start:end].sum()) for kind in (True, False)}
            yield Span(*(_sorted(crossing, kind, start, end, sizes[kind]) for kind in (True, False)))
        else:
            yield Span(*(_counted(crossing, kind, start) for kind in (True, False)))
        end = start


def _shared(crossing: Crossing, genuine: bool) -> Integers:
    """How many scores have each of the possible upper halves."""
    counts = np.zeros(BINS, dtype=np.int64)
    for _, _, scores in crossing.exact_scores(genuine):
        counts += np.bincount(_keys(scores) >> 16, minlength=BINS)
    return counts


def _sorted(crossing: Crossing, genuine: bool, start: int, end: int, size: int) -> Ranked:
    """The scores whose upper halves are in [start, end); there are `size`."""
    values = np.empty(size, dtype=np.float32)
    filled = 0
    for _, _, scores in crossing.exact_scores(genuine) if size else ():
        if end - start < BINS:
            upper = _keys(scores) >> 16
            scores = scores[(upper >= start) & (upper < end)]
        values[filled : filled + len(scores)] = scores
        filled += len(scores)
    values.sort()
    return Ranked(values)


def _counted(crossing: Crossing, genuine: bool, upper: int) -> Ranked:
    """The scores with this upper half, of which there are but 65,536 different ones."""
    counts = np.zeros(BINS, dtype=np.int64)
    for _, _, scores in crossing.exact_scores(genuine):
        keys = _keys(scores)
        counts += np.bincount(keys[keys >> 16 == upper] & (BINS - 1), minlength=BINS)
    keys = (np.uint32(upper) << np.uint32(16)) + np.arange(BINS, dtype=np.uint32)
    return Ranked(_scores(keys), np.concatenate([[0], np.cumsum(counts)]))


def _keys(scores: Floats) -> npt.NDArray[np.uint32]:
    """Numbers in the order of the scores: the bits of a float, with those of negative ones turned around."""
    bits = (scores + np.float32(0)).view(np.uint32)  # there are two zeros, and the sum with one of them is the other
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _scores(keys: npt.NDArray[np.uint32]) -> Floats:
    return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float32)
