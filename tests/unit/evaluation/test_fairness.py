"""Spread over clients and errors of groups, each computed again the plain way."""

import itertools
import math
import statistics

import numpy as np
import pytest
import torch

from personae.errors import ConfigError, DataError
from personae.evaluation.bootstrap import accuracy_interval, error_intervals, tar_intervals
from personae.evaluation.comparisons import Identified, Scores, all_pairs, held, identified, listed
from personae.evaluation.fairness import gini, group_rates, spread_intervals
from personae.evaluation.intervals import Interval
from personae.evaluation.pairs import Pairs, sample_pairs
from personae.evaluation.spread import Spread, spread
from personae.evaluation.verification import operating_points, tar_at_far, ten_fold


def faces(identities=12, images=5, size=8, noise=1.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(identities).repeat(images)
    centres = torch.nn.functional.normalize(torch.randn(identities, size, generator=random))
    return centres[labels] + noise * torch.randn(len(labels), size, generator=random) / math.sqrt(size), labels


def test_spread():
    per_client = {
        "client-000": {"rank1": 0.5, "tar@1e-01": 0.25},
        "client-001": {"rank1": 1.0},
        "client-002": {"rank1": 0.0, "tar@1e-01": 0.75},
        "client-003": {},
    }
    found = spread(per_client)
    assert found["tar@1e-01"] == Spread(mean=0.5, deviation=0.25, worst=0.25, best=0.75, clients=2, worst_decile=0.25)
    assert found["tar@1e-01"].gap == 0.5
    assert found["rank1"].deviation == pytest.approx(statistics.pstdev([0, 0.5, 1]))
    assert (found["rank1"].worst, found["rank1"].best, found["rank1"].clients) == (0.0, 1.0, 3)


def test_spread_of_nothing():
    assert spread({}) == {}
    assert spread_intervals({}) == {}


@pytest.mark.parametrize(("clients", "worst"), [(10, [0]), (11, [0, 1]), (20, [0, 1]), (21, [0, 1, 2])])
def test_the_worst_decile_is_the_mean_of_a_tenth_rounded_up(clients, worst):
    values = np.random.default_rng(clients).permutation(clients) / 64
    found = spread({str(at): {"rank1": value} for at, value in enumerate(values.tolist())})["rank1"]
    assert found.worst_decile == statistics.mean(worst) / 64


def test_intervals_over_clients_are_quantiles_of_resampled_clients():
    values = [0.2, 0.9, 0.4, 0.5, 0.8, 0.7, 0.6, 0.1, 0.3, 1.0, 0.95]
    found = spread_intervals({str(at): {"tar": value} for at, value in enumerate(values)}, resamples=200, seed=4)
    random = np.random.default_rng(4)
    figures = {"mean": [], "deviation": [], "worst_decile": [], "gap": []}
    for row in random.choice(sorted(values), size=(200, 11)):
        one = spread({str(at): {"tar": value} for at, value in enumerate(row.tolist())})["tar"]
        for name, all_ in figures.items():
            all_.append(getattr(one, name))
    for name, all_ in figures.items():
        interval, ordered = getattr(found["tar"], name), sorted(all_)
        assert (interval.low, interval.high) == pytest.approx((ordered[4], ordered[194]))  # 5 and 195 of 200
        assert interval.low < interval.high
    assert spread_intervals({"only": {"tar": 0.5}}) == {}


def test_groups_at_one_threshold_by_hand():
    groups = {
        "a": Scores(np.array([0.9, 0.8, 0.3], np.float32), np.array([0.1, 0.2, 0.5, 0.6], np.float32)),
        "b": Scores(np.array([0.7, 0.4], np.float32), np.array([0.65, 0.0, 0.1, 0.2, 0.3, 0.4], np.float32)),
    }
    # Of ten impostors, two may pass: 0.65 and 0.6. What scores more than 0.5 is accepted.
    found = group_rates(groups, 0.2)
    assert found.threshold == np.nextafter(np.float32(0.5), np.float32(1))
    assert (found.groups["a"].fmr, found.groups["a"].fnmr) == (1 / 4, 1 / 3)
    assert (found.groups["b"].fmr, found.groups["b"].fnmr) == (1 / 6, 1 / 2)
    assert (found.groups["a"].genuine_pairs, found.groups["b"].impostor_pairs) == (3, 6)
    assert found.fmr_gap == 1 / 4 - 1 / 6
    assert found.fnmr_gap == 1 / 2 - 1 / 3
    assert found.fmr_ratio == pytest.approx(1.5)
    assert found.fnmr_ratio == pytest.approx(1.5)
    assert found.fmr_gini == pytest.approx((1 / 4 - 1 / 6) / (1 / 4 + 1 / 6))  # of two: gap by sum
    assert found.fnmr_gini == pytest.approx((1 / 2 - 1 / 3) / (1 / 2 + 1 / 3))
    assert found.groups["a"].fmr_interval is None


def test_the_gini_coefficient_by_hand():
    assert gini([0.2, 0.2, 0.2]) == pytest.approx(0)
    assert gini([0.0, 0.0, 0.0]) == 0
    assert gini([0.0, 0.0, 0.3, 0.0]) == pytest.approx(1)  # one group has all errors
    assert gini([0.1, 0.2, 0.6]) == pytest.approx(2 * (0.1 + 0.5 + 0.4) / (2 * 2 * 0.9))


def test_a_threshold_from_elsewhere():
    groups = {
        name: Scores(np.array([0.9, 0.4], np.float32), np.array([low, 0.5], np.float32))
        for name, low in (("a", 0.1), ("b", 0.6))
    }
    found = group_rates(groups, 0.1, threshold=0.5)
    assert [rates.fmr for rates in found.groups.values()] == [0.5, 1.0]  # a score at the threshold is accepted
    assert group_rates(groups, 0.1, threshold=0.55).fmr_ratio == math.inf
    assert group_rates(groups, 0.1, threshold=0.95).fmr_ratio == 1


def test_groups_that_cannot_be_compared():
    some = Scores(np.array([0.9], np.float32), np.array([0.1], np.float32))
    with pytest.raises(DataError, match="1 groups"):
        group_rates({"a": some}, 0.1)
    with pytest.raises(DataError, match="group b: rates need pairs of one person"):
        group_rates({"a": some, "b": Scores(some.genuine, some.impostor[:0])}, 0.1)


def copies(pairs: Identified, times):
    """Every copy of every pair of a resample, in full; `times` is by rank of the identity."""
    names = np.unique(np.concatenate([pairs.genuine_of, *pairs.impostor_of])).tolist()
    genuine = [times[names.index(who)] for who in pairs.genuine_of]
    impostor = [times[names.index(a)] * times[names.index(b)] for a, b in zip(*pairs.impostor_of, strict=True)]
    return Scores(np.repeat(pairs.genuine, genuine), np.repeat(pairs.impostor, impostor))


def drawn(people, resamples, seed):
    random = np.random.default_rng(seed)
    return [np.bincount(random.integers(people, size=people), minlength=people) for _ in range(resamples)]


def test_intervals_of_a_list_are_quantiles_of_rates_over_copied_identities():
    vectors, labels = faces()
    pairs = held(vectors, labels * 5)
    found = tar_intervals(pairs, (0.01, 0.2, 1.0), level=0.8, resamples=12, seed=5)
    rates = [tar_at_far(copies(pairs, times), (0.01, 0.2, 1.0)) for times in drawn(12, 12, 5)]
    for far in (0.01, 0.2, 1.0):
        ordered = sorted(rate[far] for rate in rates)
        assert found[far] == Interval(ordered[1], ordered[10])
    assert found == tar_intervals(all_pairs(vectors, labels), (0.01, 0.2, 1.0), level=0.8, resamples=12, seed=5)


def test_intervals_of_the_errors_at_a_threshold():
    vectors, labels = faces()
    groups = {"even": labels % 2 == 0, "odd": labels % 2 == 1}
    pairs = {name: held(vectors[which], labels[which]) for name, which in groups.items()}
    found = group_rates(pairs, 0.05, resamples=40, level=0.9, seed=1)
    pooled = Scores(*(np.concatenate([getattr(each, k) for each in pairs.values()]) for k in ("genuine", "impostor")))
    assert found.threshold == operating_points(pooled, [0.05])[0.05].threshold
    for name, each in pairs.items():
        matches, misses = [], []
        for times in drawn(6, 40, 1):
            resampled = copies(each, times)
            if resampled.impostor_pairs:
                matches.append((resampled.impostor >= np.float32(found.threshold)).mean())
                misses.append((resampled.genuine < np.float32(found.threshold)).mean())
        for values, interval in ((matches, "fmr_interval"), (misses, "fnmr_interval")):
            low, high = np.quantile(values, (0.05, 0.95), method="inverted_cdf")
            assert getattr(found.groups[name], interval) == Interval(pytest.approx(low), pytest.approx(high))
    assert found.groups["even"].fmr_interval.low < found.groups["even"].fmr_interval.high


def test_the_interval_of_the_accuracy_counts_copies():
    vectors, labels = faces(identities=30)
    pairs = sample_pairs(labels, folds=3, pairs_per_fold=20)
    left, right = labels[pairs.left].numpy(), labels[pairs.right].numpy()
    names = np.unique(np.concatenate([left, right])).tolist()
    accuracies = []
    for times in drawn(len(names), 20, 2):
        weights = [
            times[names.index(a)] * (1 if a == b else times[names.index(b)]) for a, b in zip(left, right, strict=True)
        ]
        # Folds of copied pairs are not equally long, so each is evaluated by itself.
        folds = np.split(np.arange(60), 3)
        per_fold = []
        for fold in folds:
            others = [at for at in range(60) if at not in fold for _ in range(weights[at])]
            own = [at for at in fold for _ in range(weights[at])]
            per_fold.append(evaluated(vectors, pairs, own, others))
        if all(rate is not None for rate in per_fold):
            accuracies.append(statistics.mean(per_fold))
    found = accuracy_interval(vectors, pairs, labels, resamples=20, seed=2, level=0.8)
    low, high = np.quantile(accuracies, (0.1, 0.9), method="inverted_cdf")
    assert found == Interval(pytest.approx(low), pytest.approx(high))
    accuracy = ten_fold(vectors[pairs.left], vectors[pairs.right], pairs.same, 3).accuracy
    assert found.low < accuracy < found.high


def evaluated(vectors, pairs, own, others):
    """The accuracy on some pairs of the first threshold that is best on others."""
    unit = torch.nn.functional.normalize(vectors.double())
    distance = (unit[pairs.left] - unit[pairs.right]).square().sum(dim=1).numpy()
    same = pairs.same.numpy()
    thresholds = np.arange(0, 4, 0.01)
    best = max(thresholds, key=lambda t: (sum((distance[at] < t) == same[at] for at in others), -t))
    return statistics.mean(float((distance[at] < best) == same[at]) for at in own) if own else None


def test_identities_that_contradict_the_pairs():
    vectors, labels = faces()
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([12, 2]), torch.tensor([True, True]))
    with pytest.raises(DataError, match="said to be of one person"):
        identified(vectors, pairs, labels)


def test_a_list_with_identities_scores_like_one_without():
    vectors, labels = faces()
    left, right = zip(*itertools.islice(itertools.combinations(range(60), 2), 200), strict=True)
    left, right = torch.tensor(left), torch.tensor(right)
    pairs = Pairs(left, right, labels[left] == labels[right])
    with_, without = identified(vectors, pairs, labels), listed(vectors, pairs)
    assert np.array_equal(with_.genuine, without.genuine)
    assert np.array_equal(with_.impostor, without.impostor)
    assert labels[left][pairs.same].tolist() == with_.genuine_of.tolist()


def test_options_that_make_no_sense():
    pairs = held(*faces())
    with pytest.raises(ConfigError, match="0 resamples"):
        tar_intervals(pairs, [0.1], resamples=0)
    with pytest.raises(ConfigError, match="level 1"):
        error_intervals(pairs, 0.3, level=1, resamples=3)
