import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.errors import ConfigError, DataError
from personae.evaluation import bootstrap
from personae.evaluation.bootstrap import tar_intervals
from personae.evaluation.intervals import Interval
from personae.evaluation.verification import Scores, across, all_pairs, from_within, tar_at_far


def faces(count=60, identities=12, size=8, noise=1.2, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % identities
    centres = F.normalize(torch.randn(identities, size, generator=random))
    return centres[labels] + noise * torch.randn(count, size, generator=random) / math.sqrt(size), labels


def resampled(pairs, times):
    """Every copy of every pair of a resample, in full."""
    product = (pairs.rows @ pairs.columns.T).float().numpy()
    labels = np.union1d(pairs.row_labels, pairs.column_labels).tolist()
    found = {True: [], False: []}
    for i, j in itertools.product(range(len(pairs.row_labels)), range(len(pairs.column_labels))):
        a, b = labels.index(pairs.row_labels[i]), labels.index(pairs.column_labels[j])
        if not pairs.itself or i < j:
            found[a == b] += [product[i, j]] * (times[a] if a == b else times[a] * times[b])
    return Scores(np.array(found[True], np.float32), np.array(found[False], np.float32))


@pytest.mark.parametrize("kind", ["all pairs", "gallery", "within"])
@pytest.mark.parametrize("spare", [1, 1000])
def test_intervals_are_quantiles_of_rates_over_copied_identities(monkeypatch, kind, spare):
    monkeypatch.setattr(bootstrap, "SPARE", spare)
    vectors, labels = faces()
    pairs = {
        "all pairs": all_pairs(vectors, labels),
        "gallery": across(vectors[:15], labels[:15], vectors, labels),
        "within": from_within(vectors[:20], labels[:20], vectors[20:], labels[20:]),
    }[kind]
    fars = (0.0, 0.01, 0.2, 1.0)
    random = np.random.default_rng(5)
    rates = []
    for _ in range(12):
        times = np.bincount(random.integers(12, size=12), minlength=12)
        rates.append(tar_at_far(resampled(pairs, times), fars))
    found = tar_intervals(pairs, fars, level=0.8, resamples=12, seed=5)
    for far in fars:
        ordered = sorted(rate[far] for rate in rates)
        # The tenth and the ninetieth percentile of twelve: the second (1.2 rounded up) and the eleventh (10.8).
        assert found[far] == Interval(ordered[1], ordered[10])


def test_the_seed_decides():
    pairs = all_pairs(*faces())
    first, again, other = (tar_intervals(pairs, [0.1], resamples=50, seed=seed)[0.1] for seed in (1, 1, 2))
    assert first == again != other


def test_more_people_give_narrower_intervals():
    few, many = all_pairs(*faces(100, identities=10)), all_pairs(*faces(1000, identities=100))
    wide, narrow = (tar_intervals(pairs, [0.1], resamples=100)[0.1] for pairs in (few, many))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2


def test_what_cannot_be_resampled(monkeypatch):
    vectors, labels = faces()
    with pytest.raises(ConfigError, match="0 resamples"):
        tar_intervals(all_pairs(vectors, labels), [0.1], resamples=0)
    with pytest.raises(ConfigError, match="level 1"):
        tar_intervals(all_pairs(vectors, labels), [0.1], level=1)
    with pytest.raises(DataError, match="pairs of one person and pairs of two"):
        tar_intervals(all_pairs(vectors, torch.arange(60)), [0.1])
    monkeypatch.setattr(bootstrap, "HELD", 300)
    with pytest.raises(DataError, match="impostor pairs, and 300 is the most"):
        tar_intervals(all_pairs(vectors, labels), [0.5])


def test_a_resample_of_one_person_only_says_nothing():
    # Half of the resamples of two people are one of them twice.
    vectors, labels = faces(6, identities=2)
    found = tar_intervals(all_pairs(vectors, labels), [0.2], resamples=40)
    rate = tar_at_far(all_pairs(vectors, labels), [0.2])[0.2]
    assert found[0.2] == Interval(rate, rate)
