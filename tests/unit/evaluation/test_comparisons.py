"""Rates over all pairs, streamed, against the same pairs scored one by one and held in full."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.core import exact
from personae.core.exact import screening_error, unit_on_grid
from personae.core.precision import plain_float32
from personae.errors import Diverged
from personae.evaluation import crossing, ranking, screening
from personae.evaluation.comparisons import Crossed, Scores, across, all_pairs, from_within, listed
from personae.evaluation.curves import sweep
from personae.evaluation.pairs import Pairs
from personae.evaluation.verification import operating_points

FARS = (0, 1e-4, 1e-3, 0.01, 0.029, 0.1, 0.5, 0.9, 1)


def faces(count=300, identities=40, size=16, noise=0.9, seed=0, decimals=None):
    """Rounded to few decimals, many scores are equal."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, identities, (count,), generator=random)
    centres = F.normalize(torch.randn(identities, size, generator=random))
    vectors = centres[labels] + noise * torch.randn(count, size, generator=random) / math.sqrt(size)
    return (vectors if decimals is None else vectors.round(decimals=decimals)), labels


def one_by_one(rows, row_labels, columns, column_labels, pairs):
    """Integers on the grid, multiplied and added without any rounding, and rounded to float32 once."""
    left, right = ((unit_on_grid(side) * exact.GRID).long().tolist() for side in (rows, columns))
    found = {True: [], False: []}
    for i, j in pairs:
        whole = sum(a * b for a, b in zip(left[i], right[j], strict=True))
        found[bool(row_labels[i] == column_labels[j])].append(np.float32(whole / 2**52))
    return Scores(np.array(found[True], np.float32), np.array(found[False], np.float32))


def of_all_pairs(vectors, labels):
    return one_by_one(vectors, labels, vectors, labels, itertools.combinations(range(len(labels)), 2))


def assert_equal(streamed: Crossed, held: Scores) -> None:
    assert (streamed.genuine_pairs, streamed.impostor_pairs) == (held.genuine_pairs, held.impostor_pairs)
    assert operating_points(streamed, FARS) == operating_points(held, FARS)
    assert sweep(streamed) == sweep(held)


@pytest.mark.parametrize("decimals", [None, 2, 0])
def test_all_pairs(decimals):
    vectors, labels = faces(decimals=decimals)
    assert_equal(all_pairs(vectors, labels), of_all_pairs(vectors, labels))


@pytest.mark.parametrize("decimals", [None, 0])
def test_a_gallery_against_probes(decimals):
    gallery, names = faces(30, identities=20, seed=1, decimals=decimals)
    probes, labels = faces(400, identities=30, seed=1, decimals=decimals)  # some are in nobody's gallery
    held = one_by_one(probes, labels, gallery, names, itertools.product(range(400), range(30)))
    assert_equal(across(gallery, names, probes, labels), held)


@pytest.mark.parametrize("decimals", [None, 0])
def test_own_images_with_each_other_and_with_others(decimals):
    vectors, labels = faces(200, identities=30, decimals=decimals)
    pairs = ((i, j) for i, j in itertools.combinations(range(200), 2) if i < 50)
    held = one_by_one(vectors, labels, vectors, labels, pairs)
    assert_equal(from_within(vectors[:50], labels[:50], vectors[50:], labels[50:]), held)


def test_a_list_of_pairs(monkeypatch):
    vectors, labels = faces(60)
    left, right = torch.tensor([0, 1, 2, 3, 4, 5, 9]), torch.tensor([7, 8, 2, 9, 40, 50, 3])
    same = labels[left] == labels[right]
    monkeypatch.setattr(exact, "PAIRS_AT_ONCE", 3)
    found = listed(vectors, Pairs(left, right, same))
    expected = one_by_one(vectors, labels, vectors, labels, zip(left.tolist(), right.tolist(), strict=True))
    assert np.array_equal(found.genuine, expected.genuine)
    assert np.array_equal(found.impostor, expected.impostor)


@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (7, 64), (512, 1), (32, 10**6)])
def test_no_size_of_tiles_changes_a_result(monkeypatch, rows, columns):
    vectors, labels = faces(101, size=130)
    gallery, names = faces(17, identities=5, size=130, seed=2)
    whole = [
        all_pairs(vectors, labels),
        across(gallery, names, vectors, labels),
        from_within(gallery, names, vectors, labels),
    ]
    expected = [(operating_points(pairs, FARS), sweep(pairs)) for pairs in whole]
    monkeypatch.setattr(crossing, "ROWS", rows)
    monkeypatch.setattr(crossing, "COLUMNS", columns)
    assert [(operating_points(pairs, FARS), sweep(pairs)) for pairs in whole] == expected


def test_every_pair_is_in_one_tile(monkeypatch):
    monkeypatch.setattr(crossing, "ROWS", 8)
    monkeypatch.setattr(crossing, "COLUMNS", 11)
    vectors, labels = faces(70, identities=9)
    gallery, names = faces(25, identities=12, seed=3)
    for pairs in (
        all_pairs(vectors, labels),
        across(gallery, names, vectors, labels),
        from_within(gallery, names, vectors, labels),
    ):
        same = pairs.row_labels[:, None] == pairs.column_labels
        seen = {True: np.zeros(same.shape, int), False: np.zeros(same.shape, int)}
        for genuine, tile in itertools.product((True, False), pairs.tiles()):
            places = np.flatnonzero(pairs.of_kind(tile, genuine))
            assert tile.mixed or len(places) == (0 if genuine else pairs.exact(tile).size)
            seen[genuine][tile.rows, tile.columns].flat[places] += 1
        once = np.triu(np.ones_like(same), 1) if pairs.itself else np.ones_like(same)
        assert np.array_equal(seen[True], same & once)
        assert np.array_equal(seen[False], ~same & once)


@pytest.mark.parametrize("candidates", [1, 40, 700])
def test_places_are_found_however_few_pairs_may_be_collected(monkeypatch, candidates):
    vectors, labels = faces(250, size=64)
    expected = of_all_pairs(vectors, labels)
    monkeypatch.setattr(screening, "CANDIDATES", candidates)
    monkeypatch.setattr(screening, "SAMPLE", (12, 12))
    pairs = all_pairs(vectors, labels)
    places = [0, 1, 17, 5000, pairs.impostor_pairs // 2, pairs.impostor_pairs - 1]
    assert np.array_equal(pairs.impostors_at(places), expected.impostors_at(places))


@pytest.mark.parametrize("shift", [-0.3, 0.3, 0.9, -0.9])
def test_a_sample_that_misleads_costs_time_only(monkeypatch, shift):
    vectors, labels = faces(250, size=64)
    pairs, expected = all_pairs(vectors, labels), of_all_pairs(vectors, labels)
    monkeypatch.setattr(
        Crossed, "sample", lambda self, side: expected.impostor[:200].reshape(10, 20) + np.float32(shift)
    )
    monkeypatch.setattr(screening, "CANDIDATES", 2000)
    places = [0, 30, 4000, pairs.impostor_pairs - 1]
    found = screening.impostors_at(pairs, places)
    assert [found[place] for place in places] == expected.impostors_at(places).tolist()


def alike(count=120):
    return torch.ones(count, 8), torch.arange(count) % 30


def two_values(count=120):
    return torch.ones(count, 8) * torch.tensor([1, 1, -1]).repeat(count // 3)[:, None], torch.arange(count) % 17


def ties_at_the_threshold(count=150):
    """Signs of four components: scores are -1, -0.5, 0, 0.5 or 1."""
    random = torch.Generator().manual_seed(5)
    return torch.randint(0, 2, (count, 4), generator=random) * 2.0 - 1, torch.arange(count) % 30


def labels_that_say_nothing(count=150):
    vectors, _ = faces(count, identities=9, seed=6)
    return vectors, torch.arange(count) % 25


def a_few_doubles(count=150):
    """Nearly all pairs score alike, and no sample sees the few that are another person's double."""
    vectors = torch.eye(count)
    vectors[40] = vectors[3]
    vectors[77] = vectors[12] + 0.25 * vectors[13]
    return vectors, torch.arange(count) // 2


@pytest.mark.parametrize("together", [0, screening.TOGETHER])
@pytest.mark.parametrize("candidates", [1, 300, screening.CANDIDATES])
@pytest.mark.parametrize(
    "drawn", [alike, two_values, ties_at_the_threshold, labels_that_say_nothing, a_few_doubles, faces]
)
def test_no_distribution_of_scores_deceives_the_search(monkeypatch, drawn, candidates, together):
    monkeypatch.setattr(screening, "TOGETHER", together)
    monkeypatch.setattr(screening, "CANDIDATES", candidates)
    monkeypatch.setattr(screening, "SAMPLE", (10, 10))
    vectors, labels = drawn()
    pairs, expected = all_pairs(vectors, labels), of_all_pairs(vectors, labels)
    assert operating_points(pairs, FARS) == operating_points(expected, FARS)
    last = pairs.impostor_pairs - 1
    places = [0, 1, 2, 3, last // 7, last // 2, last - 1, last]
    assert np.array_equal(pairs.impostors_at(places), expected.impostors_at(places))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("usual", "rare"), [(0, 0), (1, 1), (0, 1), (0, -1), (1, -1), (-1, 1)])
def test_products_may_err_as_much_as_they_can(monkeypatch, usual, rare, seed):
    """With a bound so wide that dozens of pairs lie within it."""
    error = 1e-3
    monkeypatch.setattr(screening, "screening_error", lambda dimensions: error)
    random = torch.Generator().manual_seed(seed)
    original = Crossed.screened

    def wrong(self, tile):
        scores = original(self, tile)
        return scores + 0.999 * error * torch.where(torch.rand(len(scores), generator=random) < 0.1, rare, usual)

    monkeypatch.setattr(Crossed, "screened", wrong)
    vectors, labels = faces(250, size=64, seed=seed)
    pairs, expected = all_pairs(vectors, labels), of_all_pairs(vectors, labels)
    places = [0, 1, 5, 30, 300, 3000, 10_000, pairs.impostor_pairs - 1]
    found = screening.impostors_at(pairs, places)
    assert [found[place] for place in places] == expected.impostors_at(places).tolist()


def test_one_pass_and_few_exact_scores_do_for_rates_of_all_sizes(monkeypatch):
    vectors, labels = faces(900, identities=90, size=64)
    passes, rescored = [], []
    screened, scored = Crossed.screened_impostors, crossing.pair_scores
    monkeypatch.setattr(Crossed, "screened_impostors", lambda self: passes.append(1) or screened(self))
    monkeypatch.setattr(crossing, "pair_scores", lambda *args: rescored.append(len(args[1])) or scored(*args))
    pairs = all_pairs(vectors, labels)
    operating_points(pairs, (1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
    assert len(passes) == 1
    assert len(rescored) == 5  # none had to be scored again in a wider interval
    assert sum(rescored) < pairs.impostor_pairs / 10_000


def test_tensors_are_searched_like_arrays(monkeypatch):
    """As on a GPU."""
    vectors, labels = faces(250, size=64)
    pairs = all_pairs(vectors, labels)
    places = [0, 1, 17, 5000, pairs.impostor_pairs - 1]
    expected = screening.impostors_at(pairs, places)
    monkeypatch.setattr(screening, "_fastest", lambda scores: scores)
    assert screening.impostors_at(pairs, places) == expected
    monkeypatch.setattr(screening, "CANDIDATES", 700)
    assert screening.impostors_at(pairs, places) == expected


def test_the_ends_of_a_union_of_intervals():
    assert screening._ends_of_union([]) == set()
    assert screening._ends_of_union([(3, 4), (0, 1), (0.5, 2), (0.6, 0.7), (2, 2.5)]) == {0, 2.5, 3, 4}


def test_vectors_are_rounded_to_the_grid_as_unit_vectors():
    vectors = torch.randn(700, 33, generator=torch.Generator().manual_seed(4))
    vectors[0] = 0
    vectors[1] *= 1e-30
    vectors[2] *= 1e30
    vectors[3, 5:] *= 1e-9
    assert torch.equal(unit_on_grid(vectors), (exact.unit(vectors) * exact.GRID).round() / exact.GRID)


def test_scores_too_near_to_each_other_are_left_to_the_ranking(monkeypatch):
    vectors, labels = torch.ones(90, 8), torch.arange(90) % 30
    vectors[:4] = -1
    monkeypatch.setattr(screening, "CANDIDATES", 50)
    pairs = all_pairs(vectors, labels)
    assert screening.impostors_at(pairs, [0, 3000]) == {}
    assert_equal(pairs, of_all_pairs(vectors, labels))


def test_products_in_float32_are_within_the_bound_of_the_score():
    for size in (2, 64, 512, 2048):
        random = torch.Generator().manual_seed(size)
        vectors = torch.cat([torch.randn(200, size, generator=random), torch.ones(3, size), torch.eye(size)[:2]])
        pairs = all_pairs(vectors, torch.arange(len(vectors)))
        for tile in pairs.tiles():
            off = np.abs(pairs.exact(tile).astype(np.float64) - pairs.screened(tile).numpy())
            assert off.max() <= screening_error(size)


def test_the_user_may_allow_coarser_products_elsewhere():
    torch.set_float32_matmul_precision("medium")
    try:
        with plain_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_automatic_coarser_products_do_not_show():
    vectors, labels = faces(300, identities=8)
    expected = operating_points(all_pairs(vectors, labels), (1e-4, 1e-2, 0.1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (vectors @ vectors.T).dtype == torch.bfloat16
        assert operating_points(all_pairs(vectors, labels), (1e-4, 1e-2, 0.1)) == expected


@pytest.mark.parametrize(("capacity", "count"), [(1, 30), (50, 80), (3000, 300), (44_000, 300)])
@pytest.mark.parametrize("decimals", [None, 0])
def test_a_ranking_in_stretches_equals_one_in_full(monkeypatch, capacity, count, decimals):
    vectors, labels = faces(count, identities=8, decimals=decimals)
    monkeypatch.setattr(ranking, "CAPACITY", capacity)
    assert sweep(all_pairs(vectors, labels)) == sweep(of_all_pairs(vectors, labels))


def test_ranked_scores_with_counts_are_like_listed_ones():
    values = np.array([-0.5, 0.0, 0.25, 1.0], np.float32)
    counts = [2, 0, 3, 1]
    plain, counted = (
        ranking.Ranked(np.repeat(values, counts)),
        ranking.Ranked(values, np.concatenate([[0], np.cumsum(counts)])),
    )
    assert len(plain) == len(counted) == 6
    at = np.array([-1, -0.5, -0.1, 0, 0.25, 0.5, 1, 2], np.float32)
    assert np.array_equal(plain.below(at), counted.below(at))
    assert np.array_equal(plain.not_above(at), counted.not_above(at))
    assert np.array_equal(plain.at(np.arange(6)), counted.at(np.arange(6)))


def test_keys_are_in_the_order_of_the_scores():
    scores = np.array([-1.0, -0.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0], np.float32)
    keys = ranking._keys(scores)
    assert keys[3] == keys[4]
    assert sorted(set(keys.tolist())) == list(dict.fromkeys(keys.tolist()))
    assert np.array_equal(ranking._scores(keys), scores)


def test_embeddings_that_are_not_finite_are_refused():
    vectors, labels = faces(10)
    vectors[3, 2] = torch.nan
    with pytest.raises(Diverged, match="not finite"):
        all_pairs(vectors, labels)


@pytest.mark.parametrize("labels", [[], [3], [1, 1], [1, 2]])
def test_few_images_have_few_pairs(labels):
    pairs = all_pairs(torch.ones(len(labels), 4), torch.tensor(labels, dtype=torch.int64))
    assert (pairs.genuine_pairs, pairs.impostor_pairs) == (int(labels == [1, 1]), int(labels == [1, 2]))
