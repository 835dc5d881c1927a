"""How far the rates would move with other people of the same kind: bootstrap intervals over identities.

Pairs are not independent, people are. So a resample draws as many identities as there are, with replacement, and an
identity drawn w times counts as w people: its genuine pairs count w times, its impostor pairs with one that was drawn v
times v w times, and its images are not compared with those of its own copies. The rates of a resample are exact, with
its own threshold; an interval goes from one quantile of the resamples to another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from personae.errors import ConfigError, DataError
from personae.evaluation.comparisons import Crossed, check_both_kinds
from personae.evaluation.crossing import Floats, Integers
from personae.evaluation.verification import false_accepts

HELD = 2**25  # pairs of a kind that the resamples may look at, 400 MB with their identities
SPARE = 1000


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


def tar_intervals(
    pairs: Crossed, fars: Sequence[float], *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[float, Interval]:
    """Percentile intervals of the true accept rate at each false accept rate, over resampled identities.

    A resample without a genuine or an impostor pair says nothing, and is left out.
    """
    if not 0 < level < 1 or resamples < 1:
        raise ConfigError(f"{resamples} resamples at level {level}: take one or more, and a level between 0 and 1")
    check_both_kinds(pairs)
    random = np.random.default_rng(seed)
    people = _People(pairs)
    draws = [people.draw(random) for _ in range(resamples)]
    draws = [times for times in draws if all(people.pairs(times))]
    if not draws:
        raise DataError(f"no resample of {people.count} identities has pairs of both kinds: take more identities")
    genuine = _collect(pairs, people, genuine=True, above=-np.inf, most=pairs.genuine_pairs)
    tails = (1 - level) / 2, (1 + level) / 2
    intervals = {}
    for far in fars:
        rates = _rates(pairs, people, genuine, draws, far)
        intervals[far] = Interval(*np.quantile(rates, tails, method="inverted_cdf").tolist())
    return intervals


class _People:
    """The identities, with how many rows and other images each has."""

    def __init__(self, pairs: Crossed) -> None:
        self.itself = pairs.itself
        self.labels = np.union1d(pairs.row_labels, pairs.column_labels)
        self.count = len(self.labels)
        self.rows, self.others = (
            np.bincount(np.searchsorted(self.labels, side), minlength=self.count)
            for side in (pairs.row_labels, pairs.column_labels[pairs.first_other :])
        )

    def draw(self, random: np.random.Generator) -> Integers:
        """How often each is in a resample."""
        return np.bincount(random.integers(self.count, size=self.count), minlength=self.count)

    def pairs(self, times: Integers) -> tuple[int, int]:
        """How many genuine and impostor pairs a resample has."""
        rows, others = times * self.rows, times * self.others
        genuine = int(rows @ self.others)
        impostor = int(rows.sum()) * int(others.sum()) - int(rows @ others)
        if self.itself:
            genuine += int(rows @ (self.rows - 1)) // 2
            impostor += (int(rows.sum()) ** 2 - int(rows @ rows)) // 2
        return genuine, impostor


@dataclass(frozen=True, eq=False)
class _Falling:
    """Scores from the highest down, and the identities they are of."""

    scores: Floats
    first: npt.NDArray[np.int32]
    second: npt.NDArray[np.int32]
    genuine: bool

    def accepted(self, times: Integers) -> Integers:
        """How many pairs of a resample there are down to each score."""
        weights = times[self.first] if self.genuine else times[self.first] * times[self.second]
        return np.cumsum(weights)

    def above(self, score: float) -> int:
        """How many of the scores are above this one."""
        return int(np.searchsorted(-self.scores, np.float32(-score), side="left"))


def _rates(pairs: Crossed, people: _People, genuine: _Falling, draws: Sequence[Integers], far: float) -> list[float]:
    """The true accept rate of each resample.

    Only the highest impostors matter. How far down a resample has to look is not known before, so it starts with half
    as many again as are accepted of all, and looks at twice as many until that is enough for every one.
    """
    depth = false_accepts(far, pairs.impostor_pairs) * 3 // 2 + SPARE
    while True:
        most = min(depth, pairs.impostor_pairs)
        above = -np.inf if most < depth else pairs.impostors_at([most - 1])[0]
        impostor = _collect(pairs, people, genuine=False, above=float(above), most=most)
        rates = [_rate(people, genuine, impostor, times, far) for times in draws]
        known = [rate for rate in rates if rate is not None]
        if len(known) == len(draws):
            return known
        depth *= 2


def _rate(people: _People, genuine: _Falling, impostor: _Falling, times: Integers, far: float) -> float | None:
    """The true accept rate of one resample; None where the impostors do not reach down to its threshold."""
    genuine_pairs, impostor_pairs = people.pairs(times)
    allowed = false_accepts(far, impostor_pairs)
    if allowed == impostor_pairs:
        return 1.0
    refused = int(np.searchsorted(impostor.accepted(times), allowed, side="right"))
    if refused == len(impostor.scores):
        return None
    above = genuine.above(float(impostor.scores[refused]))
    return int(genuine.accepted(times)[above - 1]) / genuine_pairs if above else 0.0


def _collect(pairs: Crossed, people: _People, *, genuine: bool, above: float, most: int) -> _Falling:
    """All pairs of a kind that score above `above`, of which there are not more than `most`."""
    if most > HELD:
        raise DataError(
            f"intervals would have to hold {most} {'genuine' if genuine else 'impostor'} pairs, and {HELD} is the most:"
            " take a lower false accept rate, or fewer images"
        )
    found = []
    for tile, at, scores in pairs.exact_scores(genuine):
        chosen = np.flatnonzero(scores > np.float32(above))
        places = chosen if at is None else at[chosen]
        rows, columns = np.divmod(places, tile.columns.stop - tile.columns.start)
        labels = pairs.row_labels[rows + tile.rows.start], pairs.column_labels[columns + tile.columns.start]
        first, second = (np.searchsorted(people.labels, side).astype(np.int32) for side in labels)
        found.append((scores[chosen], first, second))
    scores, first, second = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(-scores, kind="stable")
    return _Falling(scores[order], first[order], second[order], genuine)
