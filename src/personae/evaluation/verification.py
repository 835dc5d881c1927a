"""Are two images of one person? 10-fold accuracy by the field's protocol, and exact rates over all pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.errors import ConfigError, DataError
from personae.evaluation.exact import blocks, unit, unit_on_grid
from personae.evaluation.pairs import Pairs, sample_pairs

__all__ = [
    "Curve",
    "Histogram",
    "Pairs",
    "Scores",
    "TenFold",
    "all_pairs",
    "histogram",
    "roc",
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


@dataclass(frozen=True, eq=False)
class Scores:
    """Cosine scores of the pairs of one person and of the pairs of two."""

    genuine: npt.NDArray[np.float32]
    impostor: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Curve:
    """True accept rates at rising false accept rates."""

    far: tuple[float, ...]
    tar: tuple[float, ...]


@dataclass(frozen=True)
class Histogram:
    """How many scores of each kind lie between neighbouring edges."""

    edges: tuple[float, ...]
    genuine: tuple[int, ...]
    impostor: tuple[int, ...]


def ten_fold(left: Tensor, right: Tensor, same: Tensor, folds: int = 10) -> TenFold:
    """Accuracy on each fold, with the threshold that is best on the others.

    The field's protocol: squared Euclidean distances of vectors of length one, thresholds 0, 0.01 .. 3.99, "same" when
    the distance is strictly below, unshuffled folds of neighbouring pairs (the first ones longer by one where the
    number does not divide), and the lowest of equally good thresholds.
    """
    if not 2 <= folds <= len(same):
        raise DataError(f"{len(same)} pairs cannot be divided into {folds} folds: take 2 folds or more, and more pairs")
    distance = (unit(left) - unit(right)).square().sum(dim=1).numpy()
    right_at = (distance[:, None] < THRESHOLDS) == same.numpy()[:, None]
    parts = np.array_split(right_at, folds)
    # Counts, not rates: they compare exactly, so "the first best" never depends on rounding.
    counts = np.stack([part.sum(axis=0) for part in parts])
    best = (counts.sum(axis=0) - counts).argmax(axis=1)
    accuracies = counts[np.arange(folds), best] / [len(part) for part in parts]
    return TenFold(float(accuracies.mean()), float(accuracies.std()), tuple(THRESHOLDS[best].tolist()))


def all_pairs(embeddings: Tensor, labels: Tensor) -> Scores:
    """The scores of every unordered pair of different images: N (N - 1) / 2 float32 values in all."""
    vectors, count = unit_on_grid(embeddings), len(labels)
    sizes = torch.unique(labels, return_counts=True)[1]
    genuine = np.empty(int((sizes * (sizes - 1)).sum()) // 2, dtype=np.float32)
    impostor = np.empty(count * (count - 1) // 2 - len(genuine), dtype=np.float32)
    filled = {True: 0, False: 0}
    for rows in blocks(count, count):
        others = slice(rows.start, count)
        scores = (vectors[rows] @ vectors[others].T).float()
        later = torch.ones_like(scores, dtype=torch.bool).triu(diagonal=1)
        same = labels[rows, None] == labels[others]
        for kind, target, part in ((True, genuine, scores[later & same]), (False, impostor, scores[later & ~same])):
            target[filled[kind] : filled[kind] + len(part)] = part.numpy()
            filled[kind] += len(part)
    return Scores(genuine, impostor)


def tar_at_far(scores: Scores, fars: Sequence[float]) -> dict[float, float]:
    """The highest true accept rate of any threshold t (accept: score >= t) whose false accept rate is at most `far`.

    Nothing is interpolated: these are operating points of the ROC curve. When k is the number of false accepts allowed,
    t may not reach down to the (k+1)-th highest impostor score, so exactly the genuine scores strictly above that one
    are accepted; equal scores are accepted together or not at all. A `far` below one in the number of impostor pairs
    allows none, and gives the rate at zero false accepts.
    """
    allowed = [_false_accepts(far, len(scores.impostor)) for far in fars]
    return dict(zip(fars, _tar_at_counts(scores, allowed), strict=True))


def tar_name(far: float) -> str:
    """The name of the metric, such as `tar@1e-03`."""
    mantissa, exponent = f"{far:e}".split("e")
    return f"tar@{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def roc(scores: Scores, points: int = 200) -> Curve:
    """The curve at up to `points` false accept rates, evenly spaced on a log axis from one false accept to all."""
    impostors = len(scores.impostor)
    _check_both_kinds(scores)
    counts = np.unique(np.geomspace(1, impostors, points).round().astype(np.int64)).tolist()
    return Curve(tuple(count / impostors for count in counts), tuple(_tar_at_counts(scores, counts)))


def histogram(scores: Scores, bins: int = 80) -> Histogram:
    """Counts over the whole range of the cosine, -1 to 1, so that histograms of different models can be compared."""
    edges = np.linspace(-1, 1, bins + 1)
    # Rounding can put the score of equal vectors a hair above one.
    genuine, impostor = (
        np.histogram(kind.clip(-1, 1), edges)[0].tolist() for kind in (scores.genuine, scores.impostor)
    )
    return Histogram(tuple(edges.tolist()), tuple(genuine), tuple(impostor))


def _false_accepts(far: float, impostors: int) -> int:
    """The largest number of false accepts whose rate, as floating-point division gives it, is at most `far`."""
    if not 0 <= far <= 1:
        raise ConfigError(f"a false accept rate lies between 0 and 1, not at {far}")
    # The product may be off by one either way: 0.29 * 100 is below 29, although 29 / 100 is 0.29.
    count = min(int(far * impostors) + 1, impostors)
    while count and count / impostors > far:
        count -= 1
    return count


def _tar_at_counts(scores: Scores, allowed: Sequence[int]) -> list[float]:
    _check_both_kinds(scores)
    impostors = len(scores.impostor)
    # Places, counted from the lowest score, of the best impostors that must be refused.
    places = [impostors - 1 - count for count in allowed if count < impostors]
    refused = np.partition(scores.impostor, places) if places else scores.impostor
    genuine = np.sort(scores.genuine)

    def accepted(count: int) -> int:
        if count == impostors:
            return len(genuine)
        return len(genuine) - int(np.searchsorted(genuine, refused[impostors - 1 - count], side="right"))

    return [accepted(count) / len(genuine) for count in allowed]


def _check_both_kinds(scores: Scores) -> None:
    if not len(scores.genuine) or not len(scores.impostor):
        raise DataError(
            f"rates need pairs of one person and pairs of two, but there are {len(scores.genuine)} and"
            f" {len(scores.impostor)}: take two images of one identity and one of another at least"
        )
