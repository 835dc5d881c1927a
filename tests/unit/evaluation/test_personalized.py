import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.errors import ConfigError, DataError
from personae.evaluation.identification import Searches, search, tpir_at_fpir
from personae.evaluation.personalized import AmongEverybody, half_own_pairs, personal_identification, personal_pairs
from personae.evaluation.verification import tar_at_far

FPIRS = (0.001, 0.01, 0.1, 0.3, 1.0)


def everybody(people=30, images=8, size=12, noise=1.3, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(people).repeat_interleave(images)
    centres = F.normalize(torch.randn(people, size, generator=random))
    noises = torch.randn(len(labels), size, generator=random) / math.sqrt(size)
    return F.normalize(centres[labels] + noise * noises), labels


@pytest.fixture
def client():
    """Training images of people 0 to 5, and everybody's probes."""
    vectors, labels = everybody()
    training = (torch.arange(len(labels)) % 8 < 3) & (labels < 6)
    probing = torch.arange(len(labels)) % 8 >= 3
    return vectors[training], labels[training], vectors[probing], labels[probing]


def means(train, labels):
    return {int(name): train[labels == name].double().mean(dim=0) for name in labels.unique()}


def test_open_set_identification_step_by_step(client):
    train, train_labels, probes, labels = client
    gallery = {name: F.normalize(mean, dim=0) for name, mean in means(train, train_labels).items()}
    best = [max((float(mean @ probe.double()), name) for name, mean in gallery.items()) for probe in probes]
    strangers = [score for (score, _), label in zip(best, labels.tolist(), strict=True) if label not in gallery]
    known = [
        (score, name == label) for (score, name), label in zip(best, labels.tolist(), strict=True) if label in gallery
    ]
    found = personal_identification(*client, FPIRS)
    for fpir, rate in found.items():
        allowed = [t for t in [*strangers, 2.0, -2.0] if np.mean([s >= t for s in strangers]) <= fpir]
        between = [t + 1e-6 for t in strangers if np.mean([s >= t + 1e-6 for s in strangers]) <= fpir]
        best_rate = max(np.mean([right and score >= t for score, right in known]) for t in allowed + between)
        assert rate == pytest.approx(best_rate, abs=1e-12)
    assert 0 < found[0.01] < found[0.3] <= found[1.0] < 1


def test_the_papers_identification_step_by_step(client):
    train, train_labels, probes, labels = client
    gallery = means(train, train_labels)
    negatives, positives = [], []
    for probe, label in zip(probes, labels.tolist(), strict=True):
        for name, mean in gallery.items():
            (positives if name == label else negatives).append(float(mean @ probe.double()))
    negatives.sort(reverse=True)
    found = personal_identification(*client, FPIRS, protocol="paper")
    for fpir, rate in found.items():
        threshold = negatives[math.ceil(len(probes) * fpir) - 1]
        assert rate == np.mean([score >= threshold - 1e-7 for score in positives])
    # Scores of one stranger with several entries all count, so that the rates differ.
    assert found != personal_identification(*client, FPIRS)


def test_ties_and_ranks_by_hand():
    searches = Searches(
        own=np.array([0.9, 0.6, 0.7, 0.5, -np.inf, -np.inf]),
        other=np.array([0.2, 0.65, 0.1, 0.1, 0.6, 0.5]),
        rank=np.array([1, 2, 1, 1, 9, 9]),
    )
    # Without false positives all above 0.6 count, but the second is not at rank 1; with one, all above 0.5.
    assert tpir_at_fpir(searches, [0, 0.5, 1]) == {0: 0.5, 0.5: 0.5, 1: 0.75}


def test_a_gallery_of_one_identity_has_nobody_else_to_rank():
    found = search(torch.eye(2)[:1], torch.tensor([4]), torch.eye(2), torch.tensor([4, 5]))
    assert found.own.tolist() == [1, -np.inf]
    assert found.other.tolist() == [-np.inf, 0]
    assert tpir_at_fpir(found, [0]) == {0: 1.0}


def test_pairs_of_a_client_and_everybody():
    vectors, labels = everybody()
    own = labels < 6
    pairs = personal_pairs(vectors[own], labels[own], vectors[~own], labels[~own])
    assert pairs.genuine_pairs == 6 * 28
    assert pairs.impostor_pairs == 48 * 47 // 2 - 6 * 28 + 48 * 192
    scores = vectors.double() @ vectors.double().T
    later = torch.ones_like(scores, dtype=torch.bool).triu(1) & own[:, None]
    same = labels[:, None] == labels
    highest = scores[later & ~same].sort(descending=True).values
    far = 10.5 / len(highest)
    assert tar_at_far(pairs, [far])[far] == (scores[later & same] > highest[10]).double().mean()


def test_half_of_the_impostor_pairs_are_of_two_own_people():
    vectors, labels = everybody()
    own = labels < 6
    others = (vectors[~own], labels[~own])
    pairs = half_own_pairs(vectors[own], labels[own], *others)
    assert (pairs.genuine_pairs, pairs.impostor_pairs) == (6 * 28, 2 * (48 * 47 // 2 - 6 * 28))
    cosines = vectors[own].double() @ vectors[own].double().T
    same, later = labels[own][:, None] == labels[own], torch.ones(48, 48, dtype=torch.bool).triu(1)
    within = cosines[later & ~same]
    across = (vectors[own].double() @ others[0].double().T).flatten()
    chosen = across[torch.arange(len(within)) * len(across) // len(within)]
    impostors = torch.cat([within, chosen]).sort(descending=True).values
    far = 40.5 / len(impostors)
    rates = AmongEverybody(fars=(far,), fpirs=(), half=True).rates(
        vectors[:0], labels[:0], vectors[own], labels[own], *others
    )
    names = AmongEverybody(fars=(far,), fpirs=(), half=True).names
    assert tuple(rates) == names
    assert rates[names[1]] == (cosines[later & same] > impostors[40]).double().mean()
    assert rates[names[0]] != rates[names[1]]


def test_where_somebody_is_alone_there_is_no_such_half():
    vectors, labels = everybody(people=2)
    own = labels == 0
    pairs = half_own_pairs(vectors[own], labels[own], vectors[~own], labels[~own])
    assert pairs.impostor_pairs == 0


def test_what_is_refused(client):
    train, train_labels, probes, labels = client
    with pytest.raises(ConfigError, match="there are correct and paper"):
        personal_identification(*client, FPIRS, protocol="other")
    with pytest.raises(ConfigError, match="above 0"):
        personal_identification(*client, [0], protocol="paper")
    known = labels < 6
    with pytest.raises(DataError, match="but there are 30 and 0"):
        personal_identification(train, train_labels, probes[known], labels[known], FPIRS)
    with pytest.raises(DataError, match="but there are 0 and 120"):
        personal_identification(train, train_labels, probes[~known], labels[~known], FPIRS)
