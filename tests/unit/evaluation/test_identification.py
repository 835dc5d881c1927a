import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier

from personae.core import exact
from personae.errors import DataError
from personae.evaluation.identification import class_means, rank_one, rank_rates, search


def plane(*degrees):
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def test_by_hand():
    gallery, labels = plane(0, 90, 180), torch.tensor([5, 6, 7])
    probes = plane(10, 80, 130, 170)
    assert rank_one(gallery, labels, probes, torch.tensor([5, 6, 7, 7])) == 0.75


def test_a_tie_with_another_identity_counts_against_us():
    gallery = torch.eye(2)
    between = torch.tensor([[1.0, 1.0]])
    labels = torch.tensor([0, 1])
    assert rank_one(gallery, labels, between, torch.tensor([0])) == 0.0
    assert rank_one(gallery, labels, between, torch.tensor([1])) == 0.0


def test_a_tie_within_the_identity_does_no_harm():
    gallery = torch.eye(3)
    labels = torch.tensor([4, 4, 9])
    assert rank_one(gallery, labels, torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([4])) == 1.0


def test_the_best_entry_of_an_identity_counts():
    gallery, labels = plane(0, 100, 50), torch.tensor([0, 0, 1])
    assert rank_one(gallery, labels, plane(95, 60), torch.tensor([0, 0])) == 0.5


def test_an_identity_outside_the_gallery_is_never_right():
    assert rank_one(plane(0, 90), torch.tensor([0, 1]), plane(0, 0), torch.tensor([2, 0])) == 0.5


def test_equals_the_nearest_neighbour_of_scikit_learn():
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(12, 8, generator=random)
    labels = torch.arange(12).repeat(10)
    vectors = F.normalize(centres[labels] + 1.2 * torch.randn(120, 8, generator=random))
    gallery, probes = vectors[:40], vectors[40:]
    nearest = KNeighborsClassifier(1).fit(gallery.numpy(), labels[:40].numpy())
    expected = nearest.score(probes.numpy(), labels[40:].numpy())
    assert 0.2 < expected < 0.95
    assert rank_one(gallery, labels[:40], probes, labels[40:]) == expected


def test_does_not_depend_on_the_block_size(monkeypatch):
    random = torch.Generator().manual_seed(0)
    # Small whole numbers make many exact ties.
    gallery = torch.randint(0, 3, (30, 4), generator=random).float()
    probes = torch.randint(0, 3, (50, 4), generator=random).float()
    arguments = (gallery, torch.arange(30) % 7, probes, torch.arange(50) % 7)
    whole = rank_one(*arguments)
    for block in (1, 30, 100, 1000):
        monkeypatch.setattr(exact, "BLOCK_SCORES", block)
        assert rank_one(*arguments) == whole


def test_nothing_to_identify():
    with pytest.raises(DataError, match="gallery and probes"):
        rank_one(plane(0), torch.tensor([0]), torch.empty(0, 2), torch.empty(0, dtype=torch.int64))


def test_class_means():
    vectors = torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, -1.0]])
    means = class_means(vectors, torch.tensor([0, 0, 2]), 4)
    half = 0.5**0.5
    # Images count equally whatever the length of their vectors; classes without images are zero.
    assert torch.allclose(means, torch.tensor([[half, half], [0, 0], [0, -1], [0, 0]]))
    assert means.dtype == torch.float32


def by_rank(gallery, names, probes, labels):
    """How many other identities score as high, counted one by one."""
    ranks = []
    for probe, label in zip(F.normalize(probes.double()), labels.tolist(), strict=True):
        best = {}
        for entry, name in zip(F.normalize(gallery.double()), names.tolist(), strict=True):
            best[name] = max(best.get(name, -2.0), round(float(entry @ probe), 12))
        if label in best:
            ranks.append(1 + sum(score >= best[label] for name, score in best.items() if name != label))
    return ranks


@pytest.mark.parametrize("decimals", [None, 0])
def test_ranks_count_identities_and_not_entries(decimals):
    random = torch.Generator().manual_seed(3)
    names, labels = torch.randint(0, 12, (40,), generator=random) * 7, torch.randint(0, 16, (90,), generator=random) * 7
    centres = torch.randn(16, 6, generator=random)
    gallery = centres[names // 7] + torch.randn(40, 6, generator=random)
    probes = centres[labels // 7] + torch.randn(90, 6, generator=random)
    if decimals is not None:
        gallery, probes = gallery.round(decimals=decimals), probes.round(decimals=decimals)
    found = search(gallery, names, probes, labels)
    expected = by_rank(gallery, names, probes, labels)
    assert found.rank[found.mated].tolist() == expected
    assert rank_rates(found, (1, 5, 10)) == {
        rank: sum(each <= rank for each in expected) / len(expected) for rank in (1, 5, 10)
    }
    assert ((found.rank == 1) == found.right)[found.mated].all()
    assert not found.mated.all()
    assert (found.rank[~found.mated] > len(names.unique())).all()


def test_rates_by_rank_need_somebody_who_is_there():
    found = search(plane(0), torch.tensor([0]), plane(0), torch.tensor([1]))
    with pytest.raises(DataError, match="there are none"):
        rank_rates(found, (1,))


def test_an_identity_that_ties_is_before_us():
    gallery, names = torch.eye(3), torch.tensor([0, 1, 2])
    found = search(gallery, names, torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.9, 0.0]]), torch.tensor([0, 1]))
    assert found.rank.tolist() == [2, 2]
    assert rank_rates(found, (1, 2)) == {1: 0.0, 2: 1.0}
