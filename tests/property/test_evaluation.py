"""Laws that evaluation obeys for any embeddings, above all such with many equal scores."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from personae.core.exact import unit_on_grid
from personae.evaluation.curves import sweep
from personae.evaluation.identification import rank_one
from personae.evaluation.spread import spread
from personae.evaluation.verification import Scores, across, all_pairs, operating_points, tar_at_far, ten_fold

# Few different values, so that ties are the rule.
tied = st.lists(st.integers(-8, 8).map(lambda eighths: eighths / 8), min_size=1, max_size=30)
rates = st.lists(st.floats(0, 1), min_size=1, max_size=5)


def scores(genuine, impostor):
    return Scores(np.array(genuine, dtype=np.float32), np.array(impostor, dtype=np.float32))


@st.composite
def labelled_vectors(draw, least=3, most=24):
    count = draw(st.integers(least, most))
    components = st.integers(-2, 2)
    rows = st.lists(components, min_size=3, max_size=3).filter(any)
    vectors = torch.tensor(draw(st.lists(rows, min_size=count, max_size=count)), dtype=torch.float32)
    labels = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)))
    return vectors, labels


def order(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@given(tied, tied, rates)
def test_rates_are_operating_points_of_scikit_learn(genuine, impostor, fars):
    truth = np.repeat([1, 0], [len(genuine), len(impostor)])
    fpr, tpr, _ = roc_curve(truth, np.array(genuine + impostor), drop_intermediate=False)
    assert tar_at_far(scores(genuine, impostor), fars) == {far: tpr[fpr <= far].max() for far in fars}


@given(tied, tied, rates)
def test_rates_survive_monotone_transformations(genuine, impostor, fars):
    plain, bent = scores(genuine, impostor), scores(np.exp(3 * np.array(genuine)), np.exp(3 * np.array(impostor)))
    assert tar_at_far(plain, fars) == tar_at_far(bent, fars)
    one, other = sweep(plain), sweep(bent)
    assert (one.roc, one.eer, one.auc) == (other.roc, other.eer, other.auc)


@given(tied, tied, rates)
def test_rates_rise_with_the_false_accepts_allowed(genuine, impostor, fars):
    found = tar_at_far(scores(genuine, impostor), sorted(fars))
    assert list(found.values()) == sorted(found.values())


@given(labelled_vectors(), rates, st.integers(0, 9))
def test_the_order_of_the_images_does_not_matter(faces, fars, seed):
    vectors, labels = faces
    shuffled = order(len(labels), seed)
    here, there = all_pairs(vectors, labels), all_pairs(vectors[shuffled], labels[shuffled])
    assume(here.genuine_pairs and here.impostor_pairs)
    assert tar_at_far(here, fars) == tar_at_far(there, fars)
    assert sweep(here) == sweep(there)


def held(rows, row_labels, columns, column_labels, wanted):
    """The scores of the wanted pairs, all in memory."""
    product = (unit_on_grid(rows) @ unit_on_grid(columns).T).float()
    same = row_labels[:, None] == column_labels
    return Scores(product[same & wanted].numpy(), product[~same & wanted].numpy())


@given(labelled_vectors(), rates)
def test_streamed_rates_equal_those_of_all_pairs_in_memory(faces, fars):
    vectors, labels = faces
    streamed = all_pairs(vectors, labels)
    assume(streamed.genuine_pairs and streamed.impostor_pairs)
    later = torch.ones(len(labels), len(labels), dtype=torch.bool).triu(1)
    expected = held(vectors, labels, vectors, labels, later)
    assert operating_points(streamed, fars) == operating_points(expected, fars)
    assert sweep(streamed) == sweep(expected)


@given(labelled_vectors(), labelled_vectors(), rates)
def test_streamed_rates_of_a_gallery_equal_those_in_memory(gallery, probes, fars):
    streamed = across(*gallery, *probes)
    assume(streamed.genuine_pairs and streamed.impostor_pairs)
    expected = held(*probes, *gallery, torch.tensor(True))
    assert operating_points(streamed, fars) == operating_points(expected, fars)
    assert sweep(streamed) == sweep(expected)


@given(tied, tied)
def test_area_and_equal_error_rate(genuine, impostor):
    found = sweep(scores(genuine, impostor))
    truth = np.repeat([1, 0], [len(genuine), len(impostor)])
    assert found.auc == pytest.approx(roc_auc_score(truth, np.array(genuine + impostor)), abs=1e-12)
    thresholds = [*genuine, *impostor, 2.0]
    errors = [max(np.mean(np.array(impostor) >= t), np.mean(np.array(genuine) < t)) for t in thresholds]
    assert found.eer == pytest.approx(min(errors), abs=1e-12)


@given(labelled_vectors(least=6), st.integers(0, 9))
def test_rank_one_ignores_order_names_and_lengths(faces, seed):
    vectors, labels = faces
    split = len(labels) // 2
    known, probes = order(split, seed), order(len(labels) - split, seed)
    expected = rank_one(vectors[:split], labels[:split], vectors[split:], labels[split:])
    names = torch.tensor([40, 3, 17, 8, 0])
    found = rank_one(
        4 * vectors[:split][known],
        names[labels[:split]][known],
        vectors[split:][probes] / 8,
        names[labels[split:]][probes],
    )
    assert found == expected


@settings(max_examples=30)
@given(labelled_vectors(least=8), st.integers(2, 4), st.integers(0, 9))
def test_ten_fold_ignores_sides_and_the_order_within_folds(faces, folds, seed):
    vectors, labels = faces
    half = len(labels) // 2
    left, right = vectors[:half], vectors[half : 2 * half]
    same = labels[:half] == labels[half : 2 * half]
    parts = np.array_split(np.arange(half), folds)
    shuffled = np.concatenate([part[order(len(part), seed).numpy()] for part in parts])
    expected = ten_fold(left, right, same, folds)
    assert ten_fold(right, left, same, folds) == expected
    assert ten_fold(left[shuffled], right[shuffled], same[shuffled], folds) == expected
    assert 0 <= expected.accuracy <= 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 9))
def test_spread_ignores_the_order_of_the_clients(values, seed):
    clients = {f"client-{number:03}": {"rank1": value} for number, value in enumerate(values)}
    mixed = {name: clients[name] for name in (list(clients)[at] for at in order(len(values), seed))}
    found = spread(clients)["rank1"]
    assert spread(mixed)["rank1"] == found
    assert found.worst <= found.mean <= found.best
    assert found.clients == len(values)
