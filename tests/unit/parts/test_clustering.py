"""Neighbours against brute force, FINCH against its authors' package, figures against their definitions."""

import itertools
import math
import sys
import warnings
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.errors import ConfigError, DataError, Diverged
from personae.parts.clustering import (
    DBSCAN,
    HDBSCAN,
    METHODS,
    NOBODY,
    CFinch,
    Finch,
    KMeans,
    agreement,
    finch,
    first_neighbours,
    large_enough,
    neighbours,
)


def people(count: int = 30, images: int = 8, size: int = 16, noise: float = 0.6, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(count, size, generator=source), dim=1).repeat_interleave(images, 0)
    return centres + noise * torch.randn(count * images, size, generator=source) / math.sqrt(size)


def brute(points: np.ndarray) -> list[int]:
    """Exact squared distances of whole numbers; of equal ones the first."""
    squared = ((points[:, None] - points[None]) ** 2).sum(2).astype(object)
    np.fill_diagonal(squared, 10**9)
    return [int(np.argmin(row.astype(np.int64))) for row in squared]


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -------------------------------------------------------------------------------------------------------- neighbours


@pytest.fixture(params=["float32", "bfloat16 first"])
def formats(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Screening as on processors that multiply bfloat16 and on others, whichever this one is."""
    kinds = [torch.float32] if request.param == "float32" else [torch.bfloat16, torch.float32]
    monkeypatch.setattr(neighbours, "_formats", lambda _: kinds)
    return str(request.param)


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize("block", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize(("far", "size"), [(2, 3), (9, 40)])
def test_neighbours_are_exact_with_ties_to_the_first_for_any_block_size(block: int, far: int, size: int):
    """With few different places, where ties and copies abound; and with sums that eight bits do not hold."""
    points = np.random.default_rng(3).integers(-far, far + 1, (90, size))
    near = first_neighbours(torch.from_numpy(points).float(), block=block)
    assert near.index.tolist() == brute(points)
    exact = np.sqrt(((points - points[near.index.numpy()]) ** 2).sum(1))
    # The square root of PyTorch may be off by one in the last place.
    assert np.allclose(near.distance, exact, rtol=2.0**-52, atol=0)


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize("spread", [1e-5, 1e-2, 1e-1])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_block_sizes_agree_to_the_bit_where_products_could_not_tell(metric: str, spread: float):
    """Rows within the rounding of a product of each other, of a float32 one or of a bfloat16 one."""
    rows = 1 + spread * torch.randn(400, 64, generator=source())
    found = [first_neighbours(rows, metric, block=block) for block in (13, 128, 400)]
    for other in found[1:]:
        assert torch.equal(found[0].index, other.index)
        assert torch.equal(found[0].distance, other.distance)
    exact = F.normalize(rows.double(), dim=1) if metric == "cosine" else rows.double()
    scale = 1.0 if metric == "cosine" else 16.0  # the rows are 7.8 to 8.3 long
    grid = (exact / scale * 2**24).round()
    squared = (grid[:, None] - grid[None]).square().sum(2).fill_diagonal_(math.inf)
    assert torch.equal(found[0].index, squared.argmin(1))


@pytest.mark.parametrize(("kind", "spread"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.bfloat16, 1e-1)])
def test_products_alone_would_get_these_wrong(kind: torch.dtype, spread: float):
    """The cases above are real ones: the screened values alone name other neighbours."""
    rows = 1 + spread * torch.randn(400, 64, generator=source())
    closeness = (rows.to(kind) @ rows.to(kind).T).float() - rows.square().sum(1) / 2
    assert (closeness.fill_diagonal_(-math.inf).argmax(1) != first_neighbours(rows).index).any()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", ["equally long", "of two lengths", "held by bfloat16"])
def test_screened_values_are_as_near_the_truth_as_they_claim(kind: torch.dtype, given: str):
    rows = torch.cat([people(), people(seed=1) * (0.1 if given == "of two lengths" else 1.0)])
    if given == "held by bfloat16":  # the sums alone are rounded
        rows = (20 * rows).round()
    rows, _ = neighbours._on_grid(rows, "euclidean")
    screen, here, there = neighbours._Screen(rows, kind), slice(0, 300), slice(200, 480)
    screened = screen.half_squares(here, there).double()
    true = (rows[here, None].double() - rows[None, there].double()).square().sum(2) / 2
    assert (true <= screen.at_most(screened)).all()
    assert (screened <= screen.seen_as(true).to(kind).double()).all()
    if kind == torch.bfloat16:
        assert (screened - true).abs().max() > 1e-4  # it does round
        assert given != "held by bfloat16" or screen.absolute < 1e-5
    assert screen.absolute < (1e-4 if kind == torch.float32 else 0.01)  # and yet tells people apart


def test_a_crowd_is_screened_again_in_float32(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neighbours, "_formats", lambda _: [torch.bfloat16, torch.float32])
    monkeypatch.setattr(neighbours, "CROWDED", 200)
    asked, plain = list[torch.dtype](), neighbours._Screen.half_squares

    def noted(self: neighbours._Screen, here: slice, there: slice) -> torch.Tensor:
        asked.append(self.kind)
        return plain(self, here, there)

    monkeypatch.setattr(neighbours._Screen, "half_squares", noted)
    apart = torch.randn(40, 40, generator=source(1))
    crowd = 1 + 1e-3 * torch.randn(40, 40, generator=source())
    found = first_neighbours(torch.cat([apart, crowd]), block=40)
    assert asked == [torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16]
    monkeypatch.setattr(neighbours, "_formats", lambda _: [torch.float32])
    plainly = first_neighbours(torch.cat([apart, crowd]))
    assert torch.equal(found.index, plainly.index)
    assert torch.equal(found.distance, plainly.distance)


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize("block", [1, 3, 100])
def test_of_several_copies_the_first_is_the_neighbour_wherever_it_is(block: int):
    rows = torch.eye(4)[torch.tensor([3, 0, 1, 0, 2, 1, 0, 0, 3, 1])]
    found = first_neighbours(rows, block=block)
    assert found.index.tolist() == [8, 3, 5, 1, 0, 2, 1, 1, 0, 2]
    assert found.distance[[0, 1, 2, 3, 5, 6, 7, 8, 9]].eq(0).all()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_scale_of_the_rows_does_not_matter(scale: float):
    rows = people().double()
    near, scaled = first_neighbours(rows), first_neighbours(scale * rows)
    assert torch.equal(near.index, scaled.index)
    assert torch.allclose(scaled.distance, scale * near.distance, rtol=1e-5)


def test_the_cosine_distance_is_one_minus_the_cosine():
    rows = people() * torch.linspace(0.1, 9, 240)[:, None]
    near = first_neighbours(rows, "cosine")
    cosine = F.cosine_similarity(rows[:, None].double(), rows[None].double(), dim=2).fill_diagonal_(-2)
    assert torch.equal(near.index, cosine.argmax(1))
    assert torch.allclose(near.distance, 1 - cosine.amax(1), atol=1e-6)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_rows_are_left_as_they_were(kind: torch.dtype, metric: str):
    rows = people().to(kind)
    was = rows.clone()
    finch(rows, metric, bound=0.9)
    assert torch.equal(rows, was)


def test_rows_that_have_no_neighbour_or_no_place_are_refused():
    with pytest.raises(DataError, match="at least 2"):
        first_neighbours(torch.ones(1, 3))
    with pytest.raises(Diverged, match="not finite"):
        first_neighbours(torch.tensor([[1.0], [math.nan]]))
    assert first_neighbours(torch.zeros(3, 2)).index.tolist() == [1, 0, 0]


def test_without_faiss_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"personae\[faiss\]"):
        first_neighbours(people(), search="faiss")
    for method in (CFinch(search="faiss"), Finch(search="faiss")):
        with pytest.raises(ConfigError, match=r"personae\[faiss\]"):
            method(people(), source())


def test_beyond_a_number_of_rows_faiss_takes_over_by_itself(monkeypatch: pytest.MonkeyPatch):
    rows, searched = people(), []
    monkeypatch.setattr(neighbours, "_approximate", lambda points: searched.append(len(points)) or exact(points, 64))
    exact = neighbours._exact
    assert len(rows) < neighbours.EXACT_UP_TO == 200_000
    first_neighbours(rows)
    assert not searched
    monkeypatch.setattr(neighbours, "EXACT_UP_TO", len(rows) - 1)
    first_neighbours(rows)
    first_neighbours(rows[1:])
    first_neighbours(rows, search="exact")
    assert searched == [len(rows)]
    CFinch()(rows, source())
    assert searched == [len(rows)] * 2  # clusters are few, and are searched exactly


def test_faiss_finds_nearly_all_neighbours_and_the_same_ones_again():
    pytest.importorskip("faiss")
    rows = people(200, 10, 32)
    exact, found, again = first_neighbours(rows), *(first_neighbours(rows, search="faiss") for _ in range(2))
    assert (exact.index == found.index).double().mean() > 0.95
    assert torch.equal(found.index, again.index)
    same = exact.index == found.index
    assert torch.equal(exact.distance[same], found.distance[same])
    assert (found.index != torch.arange(len(rows))).all()


# ------------------------------------------------------------------------------------------------------------- FINCH


def same_clusters(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = len(np.unique(np.stack([one, other]), axis=1).T)
    return pairs == len(np.unique(one)) == len(np.unique(other))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("noise", [0.2, 0.8, 2.0])
@pytest.mark.parametrize("count", [4, 60])
def test_finch_has_the_partitions_of_its_authors_package(metric: str, noise: float, count: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at import that it cannot approximate
        from finch import FINCH
    rows = people(count, 12, noise=noise, seed=count)
    theirs, sizes, _ = FINCH(rows.numpy(), distance=metric, ensure_early_exit=False, verbose=False)
    ours = finch(rows, metric)
    assert [int(level.max()) + 1 for level in ours] == sizes
    for level, column in zip(ours, theirs.reshape(len(rows), -1).T, strict=True):
        assert same_clusters(level.numpy(), column)


def test_an_infinite_bound_is_finch_but_for_the_last_level():
    rows = people()
    bounded, free = finch(rows, bound=1e9), finch(rows)
    assert len(bounded) == len(free) + 1
    assert all(torch.equal(*pair) for pair in zip(bounded, free, strict=False))
    assert bounded[-1].unique().tolist() == [0]


def linked_by_definition(rows: np.ndarray, bound: float) -> np.ndarray:
    """The three conditions of FINCH's Eq. 1 as a matrix, with the bound on the distance of every linked pair."""
    distance = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(2))
    np.fill_diagonal(distance, np.inf)
    nearest = distance.argmin(1)
    adjacent = np.zeros(distance.shape, dtype=bool)
    for i, j in itertools.permutations(range(len(rows)), 2):
        linked = nearest[i] == j or nearest[j] == i or nearest[i] == nearest[j]
        adjacent[i, j] = linked and distance[i, j] < bound
    labels = np.arange(len(rows))
    while True:
        spread = np.array([labels[adjacent[i] | (np.arange(len(rows)) == i)].min() for i in range(len(rows))])
        if (spread == labels).all():
            return labels
        labels = spread


@pytest.mark.parametrize("bound", [0.3, 0.5, 0.7, 5.0])
def test_links_to_first_neighbours_are_all_that_the_definition_links(bound: float):
    rows = people(12, 4, noise=0.9).numpy().astype(np.float64)
    first = finch(torch.from_numpy(rows), bound=bound)[0].numpy()
    assert same_clusters(first, linked_by_definition(rows, bound))


# ------------------------------------------------------------------------------------------------------------ methods

EVERY = [CFinch(distance=0.6), Finch(level=0), KMeans(clusters=30), DBSCAN(radius=0.6, neighbours=2), HDBSCAN()]


@pytest.mark.parametrize("method", EVERY, ids=lambda method: method.name)
def test_every_method_finds_people_who_are_easy_to_tell_apart(method):
    labels = method(7 * people(noise=0.15), source())  # the length of a feature does not matter
    found = agreement(labels, torch.arange(30).repeat_interleave(8))
    assert found.nmi > 0.9
    first = [labels.tolist().index(label) for label in range(found.clusters)]
    assert first == sorted(first)
    assert torch.equal(labels, method(people(noise=0.15), source()))


def test_methods_go_by_their_names():
    assert {name: kind().name for name, kind in METHODS.items()} == {name: name for name in METHODS}
    assert list(METHODS) == ["c-finch", "finch", "k-means", "dbscan", "hdbscan"]


def test_the_level_counts_from_either_end_and_stops_there():
    rows = F.normalize(people(noise=0.9).double(), dim=1)
    levels = finch(rows, "cosine")
    assert len(levels) >= 2
    for level, expected in ((0, 0), (1, 1), (-1, -1), (99, -1), (-99, 0)):
        assert torch.equal(Finch(level=level)(rows, source()), levels[expected])
    bounded = finch(rows, bound=0.7, centroids="unit")
    assert len(bounded) >= 2
    assert torch.equal(CFinch(distance=0.7)(rows, source()), bounded[-1])
    assert torch.equal(CFinch(distance=0.7, level=0)(rows, source()), bounded[0])


def test_euclidean_and_cosine_are_one_bound_in_two_units_where_centroids_have_length_one():
    rows = people(noise=0.9)
    one, other = CFinch(distance=0.7), CFinch(distance=0.245, metric="cosine")
    assert torch.equal(one(rows, source()), other(rows, source()))


def test_means_as_they_are_shrink_and_everybody_becomes_one():
    """The reason for the default: with 20 noisy images each, the means of different people come near each other."""
    rows, truth = people(20, 20, 64, noise=0.9), torch.arange(20).repeat_interleave(20)
    unit, mean = (agreement(CFinch(distance=1.0, centroids=kind)(rows, source()), truth) for kind in ("unit", "mean"))
    assert unit.f_score > 0.95
    assert mean.f_score < 0.5


def test_k_means_takes_as_many_clusters_as_told_or_as_the_size_suggests():
    rows = people()
    assert len(KMeans(clusters=7)(rows, source()).unique()) == 7
    assert len(KMeans(images_each=40)(rows, source()).unique()) == 6
    assert len(KMeans(clusters=999)(rows[:4], source()).unique()) == 4
    one, other = (KMeans(clusters=30)(people(noise=1.5), source(seed)) for seed in (0, 1))
    assert not torch.equal(one, other)  # it draws from the generator given
    assert not torch.equal(KMeans(clusters=30, iterations=1)(people(noise=1.5), source()), one)


def test_dbscan_leaves_loners_out():
    rows = torch.cat([people(3, 5, noise=0.1), -10 * torch.eye(16)[:2]])
    labels = DBSCAN(radius=0.5, neighbours=3)(rows, source())
    assert labels[-2:].tolist() == [NOBODY, NOBODY]
    assert labels[:15].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert DBSCAN(radius=0.5, neighbours=6)(rows, source()).eq(NOBODY).all()  # nobody has five others near


def test_hdbscan_finds_groups_of_different_density():
    tight = people(3, 8, noise=0.02)
    spread = F.normalize(torch.eye(16)[8] + 0.15 * torch.randn(8, 16, generator=source()), dim=1)
    rows, truth = torch.cat([tight, spread]), torch.tensor([0] * 8 + [1] * 8 + [2] * 8 + [3] * 8)
    assert agreement(HDBSCAN(smallest=4)(rows, source()), truth).f_score > 0.9
    few = HDBSCAN(smallest=4)(rows[:3], source())
    assert few.tolist() == [NOBODY] * 3  # fewer images than the smallest cluster has


@pytest.mark.parametrize("kind", METHODS.values())
def test_one_image_or_none_is_one_cluster_or_none(kind):
    assert kind()(torch.ones(1, 4), source()).tolist() == [0]
    assert kind()(torch.ones(0, 4), source()).tolist() == []


def test_clusters_that_are_too_small_are_dropped_and_the_others_counted_anew():
    labels = torch.tensor([0, 1, 1, NOBODY, 2, 3, 3, 3, NOBODY])
    assert large_enough(labels, 1).tolist() == [0, 1, 1, -1, 2, 3, 3, 3, -1]
    assert large_enough(labels, 2).tolist() == [-1, 0, 0, -1, -1, 1, 1, 1, -1]
    assert large_enough(labels, 3).tolist() == [-1, -1, -1, -1, -1, 0, 0, 0, -1]
    assert large_enough(labels, 4).tolist() == [-1] * 9


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        (CFinch, {"distance": 0}, "distance is 0, it must be positive"),
        (CFinch, {"distance": math.inf}, "distance is inf, it must be positive and finite"),
        (KMeans, {"clusters": 0}, "at least 1"),
        (KMeans, {"images_each": math.nan}, "at least 1"),
        (DBSCAN, {"radius": -1}, "radius is -1, it must be positive"),
        (DBSCAN, {"neighbours": 0}, "neighbours is 0, it must be at least 1"),
        (HDBSCAN, {"smallest": 1}, "smallest is 1, it must be at least 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        kind(**options)


# ---------------------------------------------------------------------------------------------------------- agreement


def by_pairs(labels: list[int], truth: list[int]) -> tuple[Fraction, Fraction, Fraction]:
    """Every pair looked at; an image of no cluster is with nobody."""
    both = within = same = 0
    for (a, p), (b, q) in itertools.combinations(zip(labels, truth, strict=True), 2):
        together = a == b != NOBODY
        within, same, both = within + together, same + (p == q), both + (together and p == q)
    precision, recall = Fraction(both, within), Fraction(both, same)
    return precision, recall, 2 * precision * recall / (precision + recall)


def mutual_information(truth: list[int], labels: list[int]) -> float:
    """Over the mean of both entropies, from the definition."""
    images = len(truth)
    shares = [Counter(each) for each in (truth, labels, zip(truth, labels, strict=True))]
    people, clusters, both = (-sum(n / images * math.log(n / images) for n in each.values()) for each in shares)
    return 2 * (people + clusters - both) / (people + clusters)


@pytest.mark.parametrize("seed", range(4))
def test_pairwise_figures_are_those_of_looking_at_every_pair(seed: int):
    random = np.random.default_rng(seed)
    labels, truth = random.integers(-1, 5, 60), random.integers(10, 16, 60)
    found = agreement(torch.from_numpy(labels), torch.from_numpy(truth))
    assert (found.precision, found.recall, found.f_score) == pytest.approx(
        tuple(map(float, by_pairs(labels.tolist(), truth.tolist()))), rel=1e-15
    )
    alone = np.where(labels == NOBODY, 100 + np.arange(60), labels)
    assert found.nmi == pytest.approx(mutual_information(truth.tolist(), alone.tolist()), abs=1e-12)
    assert found.clusters == 5
    assert found.clustered == pytest.approx((labels >= 0).mean())


def test_agreement_at_its_ends():
    truth = torch.tensor([0, 0, 1, 1])
    assert agreement(torch.tensor([5, 5, 2, 2]), truth).f_score == 1.0
    assert agreement(torch.tensor([5, 5, 2, 2]), truth).nmi == pytest.approx(1.0)
    nobody = agreement(torch.full((4,), NOBODY), truth)
    assert (nobody.f_score, nobody.precision, nobody.recall, nobody.clusters, nobody.clustered) == (0, 1, 0, 0, 0)
    crossed = agreement(torch.tensor([0, 1, 0, 1]), truth)
    assert (crossed.f_score, crossed.precision, crossed.recall) == (0, 0, 0)
    one = agreement(torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    assert (one.f_score, one.nmi) == (1, 1)
