"""How far the rates would move with other people of the same kind: bootstrap intervals over identities.

Pairs are not independent, people are. So a resample draws as many identities as there are, with replacement, and an
identity drawn w times counts as w people: its genuine pairs count w times, its impostor pairs with one that was drawn v
times v w times, and its images are not compared with those of its own copies. The rates of a resample are exact, with
its own threshold; an interval goes from one quantile of the resamples to another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from personae.core.exact import Floats, Integers
from personae.errors import ConfigError, DataError
from personae.evaluation.comparisons import Crossed, Identified, check_both_kinds
from personae.evaluation.intervals import Interval, interval
from personae.evaluation.pairs import Pairs, in_folds
from personae.evaluation.verification import false_accepts, right_at_thresholds
from personae.words import counted

HELD = 2**25  # pairs of a kind that the resamples may look at, 400 MB with their identities
SPARE = 1000


def tar_intervals(
    pairs: Crossed | Identified, fars: Sequence[float], *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[float, Interval]:
    """Percentile intervals of the true accept rate at each false accept rate, over resampled identities."""
    return {far: interval(rates, level) for far, rates in tar_resamples(pairs, fars, resamples, seed).items()}


def tar_resamples(
    pairs: Crossed | Identified, fars: Sequence[float], resamples: int = 1000, seed: int = 0
) -> dict[float, list[float]]:
    """The true accept rate of every resample, at each false accept rate.

    The same seed draws the same people for every model, so that the rates of two models are pairs.
    A resample without a genuine or an impostor pair says nothing, and is left out.
    """
    check_both_kinds(pairs)
    if isinstance(pairs, Identified):
        listed = _Listed(pairs)
        draws = _draws(listed, resamples, seed)
        return {
            far: [_known(_rate(listed, listed.genuine, listed.impostor, times, far)) for times in draws] for far in fars
        }
    people = _People(pairs)
    draws = _draws(people, resamples, seed)
    genuine = _collect(pairs, people, genuine=True, above=-np.inf, most=pairs.genuine_pairs)
    return {far: _rates(pairs, people, genuine, draws, far) for far in fars}


def error_intervals(
    pairs: Identified, threshold: float, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Interval, Interval]:
    """Intervals of the false match and the false non-match rate of those who score `threshold` or more."""
    check_both_kinds(pairs)
    people = _Listed(pairs)
    reached = [falling.above(float(np.nextafter(np.float32(threshold), np.float32(-np.inf)))) for falling in people]
    rates = []
    for times in _draws(people, resamples, seed):
        accepted = [_first(falling.accepted(times), count) for falling, count in zip(people, reached, strict=True)]
        genuine, impostor = people.pairs(times)
        rates.append((accepted[1] / impostor, 1 - accepted[0] / genuine))
    matches, non_matches = zip(*rates, strict=True)
    return interval(matches, level), interval(non_matches, level)


def accuracy_interval(
    embeddings: Tensor, pairs: Pairs, labels: Tensor, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Of the 10-fold accuracy (`ten_fold`); a pair counts as often as the identities in it were drawn."""
    right = right_at_thresholds(embeddings[pairs.left], embeddings[pairs.right], pairs.same)
    _, codes = np.unique(labels.numpy(), return_inverse=True)
    left, other = codes[pairs.left.numpy()], codes[pairs.right.numpy()]
    present, (left, other) = _recoded(left, other)
    random = np.random.default_rng(seed)
    times = np.stack([_times(present, random) for _ in range(_checked(resamples))])
    weights = np.where(pairs.same.numpy(), times[:, left], times[:, left] * times[:, other]).astype(np.float64)
    folds = list(zip(in_folds(right, pairs.folds), in_folds(weights, pairs.folds, axis=1), strict=True))
    counts = np.stack([part @ right for right, part in folds])  # [folds, resamples, thresholds], whole numbers
    best = (counts.sum(axis=0) - counts).argmax(axis=2)
    totals = np.stack([part.sum(axis=1) for _, part in folds])
    whole = (totals > 0).all(axis=0)
    if not whole.any():
        raise DataError(f"no resample of {counted(present, 'identity')} has pairs in every fold: take more identities")
    accuracies = np.take_along_axis(counts, best[:, :, None], axis=2)[:, whole, 0] / totals[:, whole]
    return interval(accuracies.mean(axis=0), level)


def _checked(resamples: int) -> int:
    if resamples < 1:
        raise ConfigError(f"{resamples} resamples: take one or more")
    return resamples


def _times(people: int, random: np.random.Generator) -> Integers:
    """How often each is in a resample of as many."""
    return np.bincount(random.integers(people, size=people), minlength=people)


def _draws(people: "_People | _Listed", resamples: int, seed: int) -> list[Integers]:
    """The resamples that say something."""
    random = np.random.default_rng(seed)
    draws = [_times(people.count, random) for _ in range(_checked(resamples))]
    draws = [times for times in draws if all(people.pairs(times))]
    if not draws:
        raise DataError(
            f"no resample of {counted(people.count, 'identity')} has pairs of both kinds: take more identities"
        )
    return draws


def _known(rate: float | None) -> float:
    assert rate is not None  # where all impostors are held, they reach down to any threshold
    return rate


def _recoded(*identities: Integers) -> tuple[int, list[Integers]]:
    """How many identities there are, and numbers below that for each."""
    names, codes = np.unique(np.concatenate(identities), return_inverse=True)
    return len(names), np.split(codes, np.cumsum([len(each) for each in identities])[:-1])


def _first(cumulated: Integers, count: int) -> int:
    return int(cumulated[count - 1]) if count else 0


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


class _Listed:
    """The identities of a list of pairs, all of which are held."""

    def __init__(self, pairs: Identified) -> None:
        self.count, (genuine_of, *impostor_of) = _recoded(pairs.genuine_of, *pairs.impostor_of)
        self.genuine = _falling(pairs.genuine, genuine_of, genuine_of, genuine=True)
        self.impostor = _falling(pairs.impostor, *impostor_of, genuine=False)

    def __iter__(self) -> Iterator[_Falling]:
        return iter((self.genuine, self.impostor))

    def pairs(self, times: Integers) -> tuple[int, int]:
        genuine, impostor = (int(falling.accepted(times)[-1]) for falling in self)
        return genuine, impostor


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


def _rate(
    people: "_People | _Listed", genuine: _Falling, impostor: _Falling, times: Integers, far: float
) -> float | None:
    """The true accept rate of one resample; None where the impostors do not reach down to its threshold."""
    genuine_pairs, impostor_pairs = people.pairs(times)
    allowed = false_accepts(far, impostor_pairs)
    if allowed == impostor_pairs:
        return 1.0
    refused = int(np.searchsorted(impostor.accepted(times), allowed, side="right"))
    if refused == len(impostor.scores):
        return None
    return _first(genuine.accepted(times), genuine.above(float(impostor.scores[refused]))) / genuine_pairs


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
    return _falling(*(np.concatenate(part) for part in zip(*found, strict=True)), genuine=genuine)


def _falling(scores: Floats, first: Integers, second: Integers, *, genuine: bool) -> _Falling:
    order = np.argsort(-scores, kind="stable")
    return _Falling(scores[order], first[order].astype(np.int32), second[order].astype(np.int32), genuine)
