import numpy as np
import pytest

from personae.evaluation.curves import sweep
from personae.evaluation.verification import Scores, tar_at_far


def scores(genuine, impostor):
    return Scores(np.array(genuine, dtype=np.float32), np.array(impostor, dtype=np.float32))


def test_the_curve_is_exact_at_each_of_its_points():
    random = np.random.default_rng(0)
    found = scores(random.normal(0.4, 0.3, 500).round(3), random.normal(0, 0.3, 30_000).round(3))
    curve = sweep(found, points=50).roc
    assert curve.far[0] == 1 / 30_000
    assert curve.far[-1] == curve.tar[-1] == 1.0
    assert 40 <= len(curve.far) <= 50
    assert list(curve.far) == sorted(set(curve.far))
    assert list(curve.tar) == sorted(curve.tar)
    assert dict(zip(curve.far, curve.tar, strict=True)) == tar_at_far(found, curve.far)
    assert curve.det == tuple((far, 1 - tar) for far, tar in zip(curve.far, curve.tar, strict=True))


def test_a_curve_of_few_impostors_has_no_point_twice():
    assert sweep(scores([0.5], [0.1, 0.7, 0.3])).roc.far == (1 / 3, 2 / 3, 1.0)


def test_the_histogram_counts_every_score():
    counts = sweep(scores([1.0, 1.0000001, 0.99, -1.0], [0.0, 0.01, -0.01]), bins=4).histogram
    assert counts.edges == (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert counts.genuine == (1, 0, 0, 3)
    assert counts.impostor == (0, 1, 2, 0)


@pytest.mark.parametrize("bins", [1, 3, 80])
def test_the_histogram_is_that_of_numpy(bins):
    random = np.random.default_rng(bins)
    # On the edges themselves, which float32 does not always hold, and around them.
    values = np.concatenate([np.linspace(-1, 1, bins + 1), random.uniform(-1, 1, 500)]).astype(np.float32)
    counts = sweep(scores(values, values[::2]), bins=bins).histogram
    edges = np.linspace(-1, 1, bins + 1)
    assert counts.genuine == tuple(np.histogram(values, edges)[0])
    assert counts.impostor == tuple(np.histogram(values[::2], edges)[0])


@pytest.mark.parametrize(
    ("genuine", "impostor", "eer", "auc"),
    [
        ([0.9, 0.8], [0.1, 0.2], 0.0, 1.0),
        ([0.1, 0.2], [0.8, 0.9], 1.0, 0.0),
        # At 0.5, one of two is refused and one of four accepted; at 0.4, none and two. Of 8 pairings 6 are won.
        ([0.9, 0.4], [0.5, 0.4, 0.3, 0.2], 0.5, 6.5 / 8),
        # At 0.6, one of four is refused and one of four accepted.
        ([0.9, 0.8, 0.6, 0.3], [0.7, 0.5, 0.2, 0.1], 0.25, 13 / 16),
        # All equal: everything is accepted, or nothing.
        ([0.5, 0.5], [0.5], 1.0, 0.5),
    ],
)
def test_equal_error_rate_and_area_by_hand(genuine, impostor, eer, auc):
    found = sweep(scores(genuine, impostor))
    assert (found.eer, found.auc) == (eer, auc)
