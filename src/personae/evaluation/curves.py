"""Everything that takes all scores in order: ROC and DET curves, equal error rate, area under the curve, histogram."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from personae.core.exact import Floats
from personae.evaluation.comparisons import Comparisons, check_both_kinds
from personae.evaluation.ranking import Span

CHUNK = 2**20  # genuine scores looked up at a time


@dataclass(frozen=True)
class Curve:
    """True accept rates at rising false accept rates."""

    far: tuple[float, ...]
    tar: tuple[float, ...]

    @property
    def det(self) -> tuple[tuple[float, float], ...]:
        """The same points as a DET curve has them: false accept rate and false reject rate."""
        return tuple((far, 1 - tar) for far, tar in zip(self.far, self.tar, strict=True))


@dataclass(frozen=True)
class Histogram:
    """How many scores of each kind lie between neighbouring edges."""

    edges: tuple[float, ...]
    genuine: tuple[int, ...]
    impostor: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """What one way through all scores gives."""

    roc: Curve
    histogram: Histogram
    eer: float
    auc: float


def sweep(comparisons: Comparisons, points: int = 200, bins: int = 80) -> Sweep:
    """Go through all scores from the highest to the lowest.

    The curve has up to `points` false accept rates, evenly spaced on a log axis from one false accept to all; like
    `tar_at_far`, it is exact at each. The histogram spans the whole range of the cosine, -1 to 1, so that those of
    different models can be compared.
    """
    check_both_kinds(comparisons)
    pairs = Accepted(comparisons.genuine_pairs, comparisons.impostor_pairs)
    allowed = np.unique(np.geomspace(1, pairs.impostor, points).round().astype(np.int64))
    accepted = np.full(len(allowed), pairs.genuine)
    edges = np.linspace(-1, 1, bins + 1)
    below = np.zeros((2, bins - 1), dtype=np.int64)
    equal: float | None = None
    wins = 0
    above = Accepted(0, 0)
    for span in comparisons.spans():
        after = Accepted(above.genuine + len(span.genuine), above.impostor + len(span.impostor))
        # With k false accepts allowed, the (k+1)-th highest impostor is refused, and all that is not above it.
        here = (allowed >= above.impostor) & (allowed < after.impostor)
        refused = span.impostor.at(after.impostor - 1 - allowed[here])
        accepted[here] = after.genuine - span.genuine.not_above(refused)
        below += [ranked.below(_not_below(edges[1:-1])) for ranked in (span.genuine, span.impostor)]
        wins += _doubled_wins(span) + 2 * len(span.genuine) * (pairs.impostor - after.impostor)
        equal = _equal_error(span, after, pairs) if equal is None else equal
        above = after
    assert equal is not None  # when everything is accepted, no error is above the false accepts
    # The outermost edges are not looked at: rounding can put the score of equal vectors a hair above one.
    bars = [tuple(np.diff(row, prepend=0, append=all_).tolist()) for row, all_ in zip(below, pairs, strict=True)]
    return Sweep(
        roc=Curve(tuple((allowed / pairs.impostor).tolist()), tuple((accepted / pairs.genuine).tolist())),
        histogram=Histogram(tuple(edges.tolist()), *bars),
        eer=equal,
        auc=wins / (2 * pairs.genuine * pairs.impostor),
    )


class Accepted(NamedTuple):
    """How many pairs are at or above some score."""

    genuine: int
    impostor: int


def _doubled_wins(span: Span) -> int:
    """Twice how often a genuine score is above an impostor one of the span, where a tie is half a win."""
    values, until = span.genuine.values, span.genuine.until
    wins = 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        doubled = span.impostor.below(part) + span.impostor.not_above(part)
        wins += int(doubled.sum() if until is None else doubled @ np.diff(until[start : start + CHUNK + 1]))
    return wins


def _equal_error(span: Span, until: Accepted, pairs: Accepted) -> float | None:
    """The larger error rate where the two are nearest; None where false accepts are rarer even at the span's lowest."""

    def accepted(score: Floats, *, itself: bool) -> Accepted:
        """Down to this score."""
        genuine, impostor = (r.below(score) if itself else r.not_above(score) for r in (span.genuine, span.impostor))
        return Accepted(until.genuine - int(genuine[0]), until.impostor - int(impostor[0]))

    def refusals_prevail(score: Floats) -> bool:
        count = accepted(score, itself=True)
        return count.impostor * pairs.genuine < (pairs.genuine - count.genuine) * pairs.impostor

    def larger_error(count: Accepted) -> float:
        return max(count.impostor / pairs.impostor, (pairs.genuine - count.genuine) / pairs.genuine)

    turns = []
    for values in (span.genuine.values, span.impostor.values):
        # False refusals get more with rising scores, so the values where they do not prevail come first.
        singles = values.reshape(-1, 1)
        others = bisect_left(singles, True, key=refusals_prevail)
        turns += [singles[others - 1]] if others else []
    if not turns:
        return None
    turn = max(turns)
    return min(larger_error(accepted(turn, itself=itself)) for itself in (True, False))


def _not_below(edges: npt.NDArray[np.float64]) -> Floats:
    """The lowest float32 values that are not below these, so that float32 scores need not be widened to compare."""
    rounded = edges.astype(np.float32)
    return np.where(rounded < edges, np.nextafter(rounded, np.float32(np.inf)), rounded)
