"""Are two images of one person? 10-fold accuracy by the field's protocol, and exact rates over all pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from personae.core.exact import unit
from personae.errors import ConfigError, DataError
from personae.evaluation.comparisons import (
    Comparisons,
    Scores,
    across,
    all_pairs,
    check_both_kinds,
    from_within,
    listed,
)
from personae.evaluation.pairs import Folds, Pairs, in_folds, sample_pairs
from personae.words import counted

__all__ = [
    "Comparisons",
    "OperatingPoint",
    "Pairs",
    "Scores",
    "TenFold",
    "across",
    "all_pairs",
    "false_accepts",
    "from_within",
    "listed",
    "operating_points",
    "rate_name",
    "right_at_thresholds",
    "sample_pairs",
    "tar_at_far",
    "tar_name",
    "ten_fold",
]

THRESHOLDS = np.arange(0, 4, 0.01)


@dataclass(frozen=True)
class TenFold:
    """Mean and (population) standard deviation of the accuracy over the folds, and the threshold used in each."""

    accuracy: float
    deviation: float
    thresholds: tuple[float, ...]


@dataclass(frozen=True)
class OperatingPoint:
    """Accept what scores `threshold` or more: it is the lowest at which no more false accepts occur than allowed."""

    threshold: float
    tar: float


def ten_fold(left: Tensor, right: Tensor, same: Tensor, folds: Folds = 10) -> TenFold:
    """Accuracy on each fold, with the threshold that is best on the others.

    The field's protocol: squared Euclidean distances of vectors of length one, thresholds 0, 0.01 .. 3.99, "same" when
    the distance is strictly below, unshuffled folds of neighbouring pairs (`in_folds`), and the lowest of equally
    good thresholds.
    """
    parts = in_folds(right_at_thresholds(left, right, same), folds)
    if len(parts) < 2 or not all(len(part) for part in parts):
        raise DataError(
            f"{counted(len(same), 'pair')} cannot be divided into {counted(len(parts), 'fold')}: take 2 folds or "
            "more, and more pairs"
        )
    # Counts, not rates: they compare exactly, so "the first best" never depends on rounding.
    counts = np.stack([part.sum(axis=0) for part in parts])
    best = (counts.sum(axis=0) - counts).argmax(axis=1)
    accuracies = counts[np.arange(len(parts)), best] / [len(part) for part in parts]
    return TenFold(float(accuracies.mean()), float(accuracies.std()), tuple(THRESHOLDS[best].tolist()))


def right_at_thresholds(left: Tensor, right: Tensor, same: Tensor) -> npt.NDArray[np.bool_]:
    """Of each pair and each of the field's thresholds, whether it would be decided rightly."""
    distance = (unit(left) - unit(right)).square().sum(dim=1).cpu().numpy()
    right_at: npt.NDArray[np.bool_] = (distance[:, None] < THRESHOLDS) == same.numpy()[:, None]
    return right_at


def operating_points(comparisons: Comparisons, fars: Sequence[float]) -> dict[float, OperatingPoint]:
    """The lowest threshold t (accept: score >= t) whose false accept rate is at most `far`, and its true accept rate.

    Nothing is interpolated: these are operating points of the ROC curve. When k is the number of false accepts allowed,
    t may not reach down to the (k+1)-th highest impostor score, so exactly the genuine scores strictly above that one
    are accepted; equal scores are accepted together or not at all. A `far` below one in the number of impostor pairs
    allows none, and gives the rate at zero false accepts.
    """
    allowed = {far: false_accepts(far, comparisons.impostor_pairs) for far in fars}
    check_both_kinds(comparisons)
    places = sorted({count for count in allowed.values() if count < comparisons.impostor_pairs})
    refused = comparisons.impostors_at(places)
    accepted = comparisons.genuine_above(refused)
    # With every impostor allowed, nothing is refused.
    points = {comparisons.impostor_pairs: OperatingPoint(-math.inf, 1.0)}
    for place, threshold, count in zip(places, np.nextafter(refused, np.float32(np.inf)), accepted, strict=True):
        points[place] = OperatingPoint(float(threshold), int(count) / comparisons.genuine_pairs)
    return {far: points[count] for far, count in allowed.items()}


def tar_at_far(comparisons: Comparisons, fars: Sequence[float]) -> dict[float, float]:
    """The highest true accept rate of any threshold whose false accept rate is at most `far`."""
    return {far: point.tar for far, point in operating_points(comparisons, fars).items()}


def tar_name(far: float) -> str:
    """The name of the metric, such as `tar@1e-03`."""
    return rate_name("tar", far)


def rate_name(metric: str, rate: float) -> str:
    """The name of a metric at a rate."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{metric}@{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def false_accepts(far: float, impostors: int) -> int:
    """The largest number of false accepts whose rate, as floating-point division gives it, is at most `far`."""
    if not 0 <= far <= 1:
        raise ConfigError(f"a false accept rate lies between 0 and 1, not at {far}")
    # The product may be off by one either way: 0.29 * 100 is below 29, although 29 / 100 is 0.29.
    count = min(int(far * impostors) + 1, impostors)
    while count and count / impostors > far:
        count -= 1
    return count
