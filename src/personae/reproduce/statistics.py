"""Whether differences between runs of the same seeds are more than chance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import scipy.stats

LEVEL = 0.05  # of each one-sided test
CONFIDENCE = 0.95  # of intervals, which have two sides


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    NOISE = "within noise"
    MISSING = "not measured"
    UNREACHED = "regime not reached"


@dataclass(frozen=True)
class Test:
    """Numbers, one a seed, held against zero by a one-sample t-test (a paired one, where they are differences)."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Over the seeds; of one seed there is none, nor where a run has no figures."""
        known = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if known else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean of all seeds there could be is likely to lie, by the t distribution."""
        if self.deviation is None:
            return None
        quantile = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(self.values) - 1))
        reach = quantile * self.deviation / math.sqrt(len(self.values))
        return self.mean - reach, self.mean + reach

    def above(self, bound: float) -> float:
        """The chance of a mean this far above `bound` or farther if the truth were the bound: a one-sided p."""
        excess, count = self.mean - bound, len(self.values)
        if not self.deviation:  # one seed proves nothing; equal numbers prove what they show
            return 1.0 if count < 2 or excess <= 0 else 0.0
        # By hand: SciPy's own test warns of numbers that are all but equal.
        return float(scipy.stats.t.sf(excess / (self.deviation / math.sqrt(count)), count - 1))

    def below(self, bound: float) -> float:
        return Test(tuple(-value for value in self.values)).above(-bound)

    def exceeds(self, bound: float = 0.0) -> Verdict:
        """Whether the numbers lie above `bound`, below it, or cannot be told from it."""
        if not all(map(math.isfinite, self.values)):
            return Verdict.MISSING
        if self.above(bound) < LEVEL:
            return Verdict.HOLDS
        return Verdict.FAILS if self.below(bound) < LEVEL else Verdict.NOISE

    def stays_within(self, bound: float) -> Verdict:
        """Whether the numbers lie between -bound and bound (two one-sided tests), outside, or either way."""
        if not all(map(math.isfinite, self.values)):
            return Verdict.MISSING
        if max(self.above(-bound), self.below(bound)) < LEVEL:
            return Verdict.HOLDS
        return Verdict.FAILS if min(self.below(-bound), self.above(bound)) < LEVEL else Verdict.NOISE


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim of several parts holds where all do, and not where one does not."""
    for verdict in (Verdict.MISSING, Verdict.FAILS, Verdict.NOISE):
        if verdict in verdicts:
            return verdict
    return Verdict.HOLDS
