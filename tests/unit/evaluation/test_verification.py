import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_curve

from personae.core import exact
from personae.errors import ConfigError, DataError
from personae.evaluation.curves import sweep
from personae.evaluation.verification import (
    Scores,
    operating_points,
    sample_pairs,
    tar_at_far,
    tar_name,
    ten_fold,
)


def faces(count=60, identities=8, size=16, noise=0.6, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, identities, (count,), generator=random)
    centres = F.normalize(torch.randn(identities, size, generator=random))
    vectors = F.normalize(centres[labels] + noise * torch.randn(count, size, generator=random) / math.sqrt(size))
    return vectors, labels


def at_distance(*squared):
    """Pairs of plane vectors with the given squared distances: |a - b|^2 = 2 - 2 cos(angle)."""
    angles = torch.acos(1 - torch.tensor(squared, dtype=torch.float64) / 2)
    right = torch.stack([angles.cos(), angles.sin()], dim=1)
    return torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand_as(right), right


def scores(genuine, impostor):
    return Scores(np.array(genuine, dtype=np.float32), np.array(impostor, dtype=np.float32))


def ten_fold_step_by_step(left, right, same, folds):
    """The protocol as the papers tell it, one pair at a time."""
    distances = [float(((a - b) ** 2).sum()) for a, b in zip(left.numpy(), right.numpy(), strict=True)]
    truth = same.tolist()
    count = len(truth)
    bounds = [0]
    for fold in range(folds):
        bounds.append(bounds[-1] + count // folds + (fold < count % folds))

    def accuracy(positions, threshold):
        return sum((distances[i] < threshold) == truth[i] for i in positions) / len(positions)

    accuracies, thresholds = [], []
    for start, stop in itertools.pairwise(bounds):
        test = list(range(start, stop))
        rest = [i for i in range(count) if i not in test]
        candidates = np.arange(0, 4, 0.01).tolist()
        best = max(accuracy(rest, t) for t in candidates)
        chosen = next(t for t in candidates if accuracy(rest, t) == best)
        thresholds.append(chosen)
        accuracies.append(accuracy(test, chosen))
    mean = sum(accuracies) / folds
    return mean, math.sqrt(sum((a - mean) ** 2 for a in accuracies) / folds), tuple(thresholds)


@pytest.mark.parametrize(("count", "folds"), [(60, 10), (37, 5), (21, 10), (8, 2)])
def test_ten_fold_equals_the_protocol_taken_literally(count, folds):
    vectors, labels = faces(2 * count, identities=3, noise=1.5, seed=count)
    left, right = F.normalize(vectors[:count].double()), F.normalize(vectors[count:].double())
    same = labels[:count] == labels[count:]
    result = ten_fold(left, right, same, folds)
    accuracy, deviation, thresholds = ten_fold_step_by_step(left, right, same, folds)
    assert result.accuracy == pytest.approx(accuracy, abs=1e-12)
    assert result.deviation == pytest.approx(deviation, abs=1e-12)
    assert result.thresholds == thresholds


def test_ten_fold_by_hand():
    # Fold 1: 0.5 same, 1.5 different. Fold 2: 1.005 same, 0.805 different. Thresholds lie on a grid of 0.01.
    left, right = at_distance(0.5, 1.5, 1.005, 0.805)
    result = ten_fold(left, right, torch.tensor([True, False, True, False]), folds=2)
    # Trained on fold 2, both pairs cannot be right; 0 is the first threshold that gets one right ("different").
    # Trained on fold 1, the first threshold above 0.5 gets both right.
    assert result.thresholds == (0.0, 0.51)
    # At 0, fold 1 has one of two right; at 0.51, fold 2 has only its second pair right.
    assert (result.accuracy, result.deviation) == (0.5, 0.0)


def test_same_means_strictly_below_the_threshold():
    # Orthogonal vectors are at squared distance 2 exactly, which is a threshold.
    axes = torch.eye(2)
    left, right = axes[[0, 0, 0, 0]], axes[[1, 1, 1, 1]]
    result = ten_fold(left, right, torch.tensor([True, True, True, True]), folds=2)
    assert result.thresholds == pytest.approx((2.01, 2.01))


def test_ten_fold_normalises():
    vectors, labels = faces(40, identities=2, noise=1.5)
    arguments = labels[:20] == labels[20:]
    assert ten_fold(vectors[:20], vectors[20:], arguments) == ten_fold(8 * vectors[:20], vectors[20:] / 4, arguments)


def test_ten_fold_needs_a_pair_in_every_fold():
    axes = torch.eye(2)
    with pytest.raises(DataError, match="2 pairs cannot be divided into 10 folds"):
        ten_fold(axes, axes, torch.tensor([True, False]))


def test_products_on_the_grid_are_exact_in_any_order():
    vectors = exact.unit_on_grid(torch.randn(50, 512, generator=torch.Generator().manual_seed(3)))
    whole = (vectors * exact.GRID).long().tolist()
    product = vectors @ vectors.T
    assert torch.equal(product, (vectors.flip(1) @ vectors.flip(1).T))
    for i, j in itertools.product(range(0, 50, 7), range(0, 50, 5)):
        integer = sum(a * b for a, b in zip(whole[i], whole[j], strict=True))
        assert product[i, j].item() * 2.0**52 == integer


@pytest.mark.parametrize(
    ("genuine", "impostor", "far", "expected"),
    [
        # One false accept of four is allowed: refuse 0.3 and below; 0.9, 0.6 and 0.4 pass.
        ([0.9, 0.6, 0.4, 0.2], [0.5, 0.3, 0.1, 0.0], 0.25, 0.75),
        # None allowed: only what lies above 0.5.
        ([0.9, 0.6, 0.4, 0.2], [0.5, 0.3, 0.1, 0.0], 0.24, 0.5),
        # A genuine score equal to the best impostor cannot be accepted without that impostor.
        ([0.5, 0.9], [0.5, 0.1], 0.0, 0.5),
        ([0.5, 0.9], [0.5, 0.1], 0.5, 1.0),
        # Two equal impostors are accepted together; one allowed means none of them, nor the genuine 0.5.
        ([0.5, 0.4, 0.9], [0.5, 0.5, 0.1, 0.0], 0.25, 1 / 3),
        ([0.5, 0.4, 0.9], [0.5, 0.5, 0.1, 0.0], 0.5, 1.0),
        # Everything equal: all or nothing.
        ([0.5, 0.5], [0.5, 0.5, 0.5], 0.99, 0.0),
        ([0.5, 0.5], [0.5, 0.5, 0.5], 1.0, 1.0),
        # Every impostor allowed.
        ([-1.0], [1.0], 1.0, 1.0),
        ([-1.0], [1.0], 0.0, 0.0),
    ],
)
def test_tar_at_far_by_hand(genuine, impostor, far, expected):
    assert tar_at_far(scores(genuine, impostor), [far]) == {far: expected}


@pytest.mark.parametrize("decimals", [1, 2, 7])
def test_tar_at_far_is_the_best_operating_point_of_scikit_learn(decimals):
    random = np.random.default_rng(decimals)
    genuine = random.normal(0.5, 0.3, 217).round(decimals)
    impostor = random.normal(0.0, 0.3, 1000).round(decimals)
    found = scores(genuine, impostor)
    fpr, tpr, _ = roc_curve(
        np.repeat([1, 0], [217, 1000]), np.concatenate([found.genuine, found.impostor]), drop_intermediate=False
    )
    fars = [0, 1e-4, 1e-3, 2e-3, 0.01, 0.29, 0.07, 0.5, 0.999, 1, *fpr.tolist()]
    assert tar_at_far(found, fars) == {far: tpr[fpr <= far].max() for far in fars}


def test_rates_that_floating_point_multiplication_misses():
    # 0.29 * 100 = 28.999..., and 0.07 * 100 = 7.000...01.
    impostor = np.arange(100) / 100
    for allowed in range(101):
        just_above = (99.5 - allowed) / 100
        found = scores([just_above], impostor)
        assert tar_at_far(found, [allowed / 100]) == {allowed / 100: 1.0}
        if allowed:
            fewer = np.nextafter(allowed / 100, 0)
            assert tar_at_far(found, [fewer]) == {fewer: 0.0}


def test_rates_need_both_kinds_of_pairs():
    with pytest.raises(DataError, match="pairs of one person and pairs of two"):
        tar_at_far(scores([0.5], []), [0.1])
    with pytest.raises(DataError, match="there are 0 and 1"):
        sweep(scores([], [0.5]))


@pytest.mark.parametrize("far", [-0.1, 1.5, math.nan])
def test_rates_lie_between_zero_and_one(far):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        tar_at_far(scores([0.5], [0.5]), [far])


@pytest.mark.parametrize(
    ("far", "name"),
    [(0.1, "tar@1e-01"), (1e-3, "tar@1e-03"), (0.015, "tar@1.5e-02"), (0.05, "tar@5e-02"), (1.0, "tar@1e+00")],
)
def test_names_of_rates(far, name):
    assert tar_name(far) == name


def test_the_threshold_is_the_lowest_that_keeps_the_rate():
    found = scores([0.9, 0.5, 0.3], [0.5, 0.4, 0.4, 0.1])
    points = operating_points(found, [0, 0.5, 0.75, 1])
    assert {far: point.tar for far, point in points.items()} == tar_at_far(found, [0, 0.5, 0.75, 1])
    just_above = [float(np.nextafter(np.float32(score), np.float32(2))) for score in (0.5, 0.4, 0.1)]
    assert [point.threshold for point in points.values()] == [*just_above, -math.inf]
    for far, point in points.items():
        assert np.mean(found.impostor >= point.threshold) <= far
        assert np.mean(found.genuine >= point.threshold) == point.tar


def test_sampled_pairs_are_as_promised():
    labels = torch.randint(0, 60, (600,), generator=torch.Generator().manual_seed(1))
    pairs = sample_pairs(labels, folds=5, pairs_per_fold=80, seed=7)
    assert len(pairs.left) == len(pairs.right) == len(pairs.same) == 400
    assert torch.equal(labels[pairs.left] == labels[pairs.right], pairs.same)
    assert not (pairs.left == pairs.right).any()
    unordered = {frozenset(pair) for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)}
    assert len(unordered) == 400
    identities = [
        set(labels[pairs.left[start : start + 80]].tolist()) | set(labels[pairs.right[start : start + 80]].tolist())
        for start in range(0, 400, 80)
    ]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(identities, 2))
    assert [int(part.sum()) for part in pairs.same.reshape(5, 80)] == [40] * 5


def test_sampling_can_take_every_pair_there_is():
    # Two folds of two identities with two images each: 2 genuine and 4 impostor pairs in a fold.
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    pairs = sample_pairs(labels, folds=2, pairs_per_fold=4)
    assert sorted(labels[pairs.left[pairs.same]].tolist()) == [0, 1, 2, 3]


def test_sampling_is_uniform_within_a_fold():
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
    seen = {True: {}, False: {}}
    for seed in range(2000):
        pairs = sample_pairs(labels, folds=2, pairs_per_fold=2, seed=seed)
        for left, right, same in zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist(), strict=True):
            pair = frozenset((left, right))
            seen[same][pair] = seen[same].get(pair, 0) + 1
    # 3 + 1 + 3 + 1 genuine pairs, each a quarter of the draws of its fold: 500, give or take five deviations of 19.
    assert len(seen[True]) == 8
    assert all(abs(times - 500) < 100 for times in seen[True].values())
    # Identities 0 and 2 (or 1 and 3) never share a fold: they are dealt first to different ones.
    assert all(len({labels[i].item() for i in pair} & {0, 2}) == 1 for pair in seen[False])


def test_sampling_is_decided_by_the_seed():
    labels = torch.arange(40).repeat(5)
    first, again, other = (sample_pairs(labels, pairs_per_fold=20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.left, again.left)
    assert torch.equal(first.right, again.right)
    assert not torch.equal(first.left, other.left)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.arange(100), "fold 1 has 0 and 45"),
        (torch.arange(10).repeat(30), "fold 1 has 435 and 0, with 1 identity and 30 images"),
        (torch.empty(0, dtype=torch.int64), "fold 1 has 0 and 0, with 0 identities"),
    ],
)
def test_too_few_identities_or_images(labels, message):
    with pytest.raises(DataError, match=message):
        sample_pairs(labels, pairs_per_fold=20)


@pytest.mark.parametrize("options", [{"pairs_per_fold": 7}, {"pairs_per_fold": 0}, {"folds": 1}])
def test_impossible_folds(options):
    with pytest.raises(ConfigError, match="even number"):
        sample_pairs(torch.arange(40).repeat(5), **options)
