"""How evenly a model serves clients or groups of people: spread, worst, gaps, and errors at one threshold for all.

A client's metrics are figures that it sent. `spread.py` sums them up, and `spread_intervals` says how far that would
move with other clients of the same kind. Of groups whose pairs are at hand, `group_rates` tells the errors at one
threshold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from personae.errors import DataError
from personae.evaluation.bootstrap import error_intervals
from personae.evaluation.comparisons import Identified, Scores
from personae.evaluation.intervals import Interval, interval
from personae.evaluation.spread import by_metric, tenth
from personae.evaluation.verification import operating_points


@dataclass(frozen=True)
class SpreadIntervals:
    """How far the figures of a `Spread` would move with other clients of the same kind."""

    mean: Interval
    deviation: Interval
    worst_decile: Interval
    gap: Interval


def spread_intervals(
    per_client: Mapping[str, Mapping[str, float]], *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[str, SpreadIntervals]:
    """Percentile intervals over resampled clients, of each metric that two clients or more have.

    The worst and the best of a resample can be no more extreme than those there are, so the interval of the gap reaches
    downwards alone.
    """
    found = {}
    for name, values in by_metric(per_client).items():
        if len(values) < 2:
            continue
        random = np.random.default_rng(seed)
        ordered = np.sort(np.array(values))
        drawn = np.sort(random.choice(ordered, size=(resamples, len(ordered))), axis=1)
        worst = drawn[:, : tenth(len(ordered))].mean(axis=1)
        figures = drawn.mean(axis=1), drawn.std(axis=1), worst, drawn[:, -1] - drawn[:, 0]
        found[name] = SpreadIntervals(*(interval(each, level) for each in figures))
    return found


@dataclass(frozen=True)
class ErrorRates:
    """False match and false non-match rate of a group, with intervals over its identities where they are known."""

    fmr: float
    fnmr: float
    genuine_pairs: int
    impostor_pairs: int
    fmr_interval: Interval | None = None
    fnmr_interval: Interval | None = None


@dataclass(frozen=True)
class GroupRates:
    """The errors of every group at one threshold, at which all groups together have the rate `far` at most."""

    far: float
    threshold: float
    groups: dict[str, ErrorRates]

    @property
    def fmr_gap(self) -> float:
        return _gap([rates.fmr for rates in self.groups.values()])

    @property
    def fnmr_gap(self) -> float:
        return _gap([rates.fnmr for rates in self.groups.values()])

    @property
    def fmr_ratio(self) -> float:
        """How many times as often the worst group is matched falsely as the best; infinite where the best never is."""
        return _ratio([each.fmr for each in self.groups.values()])

    @property
    def fnmr_ratio(self) -> float:
        """How many times as often the worst group is rejected falsely as the best; infinite where the best never is."""
        return _ratio([each.fnmr for each in self.groups.values()])

    @property
    def fmr_gini(self) -> float:
        return gini([each.fmr for each in self.groups.values()])

    @property
    def fnmr_gini(self) -> float:
        return gini([each.fnmr for each in self.groups.values()])


def group_rates(
    groups: Mapping[str, Scores],
    far: float,
    *,
    threshold: float | None = None,
    level: float = 0.95,
    resamples: int = 0,
    seed: int = 0,
) -> GroupRates:
    """Errors of each group at the threshold which the impostors of all groups together give for `far`, or at a given
    one. Intervals, with `resamples`, leave the threshold where it is: it belongs to the system, not to the group.
    """
    if len(groups) < 2:
        raise DataError(f"{len(groups)} groups: to compare takes two at least")
    for name, scores in groups.items():
        if not scores.genuine_pairs or not scores.impostor_pairs:
            raise DataError(f"group {name}: rates need pairs of one person and pairs of two; add what is missing")
    if threshold is None:
        pooled = Scores(*(np.concatenate([getattr(each, kind) for each in groups.values()]) for kind in KINDS))
        threshold = operating_points(pooled, [far])[far].threshold
    return GroupRates(
        far, threshold, {name: _errors(each, threshold, level, resamples, seed) for name, each in groups.items()}
    )


KINDS = ("genuine", "impostor")


def gini(rates: Sequence[float]) -> float:
    """The Gini coefficient of two rates or more: 0 where all are alike, 1 where one group has all errors.

    It has the factor n / (n - 1) of the measure of fairness that is made of it (Howard et al., GARBE), so that few
    groups can reach 1 as well.
    """
    count, total = len(rates), math.fsum(rates)
    if not total:
        return 0.0
    differences = math.fsum(abs(one - other) for one in rates for other in rates)
    return differences / (2 * (count - 1) * total)


def _errors(scores: Scores, threshold: float, level: float, resamples: int, seed: int) -> ErrorRates:
    accepted = [int(np.count_nonzero(getattr(scores, kind) >= np.float32(threshold))) for kind in KINDS]
    rates = ErrorRates(
        fmr=accepted[1] / scores.impostor_pairs,
        fnmr=(scores.genuine_pairs - accepted[0]) / scores.genuine_pairs,
        genuine_pairs=scores.genuine_pairs,
        impostor_pairs=scores.impostor_pairs,
    )
    if not resamples or not isinstance(scores, Identified):
        return rates
    matches, non_matches = error_intervals(scores, threshold, level=level, resamples=resamples, seed=seed)
    return replace(rates, fmr_interval=matches, fnmr_interval=non_matches)


def _ratio(rates: Sequence[float]) -> float:
    return max(rates) / min(rates) if min(rates) else math.inf if max(rates) else 1.0


def _gap(values: Sequence[float]) -> float:
    return max(values) - min(values)
