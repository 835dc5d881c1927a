"""Laws of clustering: the order of the images does not matter, and a tighter bound never links more."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.parts.clustering import CFinch, Finch, agreement, finch, first_neighbours

SEEDS = st.integers(0, 2**31)


def rows_of(seed: int, count: int, size: int = 6) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def together(labels: torch.Tensor) -> torch.Tensor:
    return labels[:, None] == labels[None]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(2, 60), st.integers(1, 70), st.sampled_from(["euclidean", "cosine"]))
def test_neighbours_move_with_the_rows_whatever_the_block(seed: int, count: int, block: int, metric: str):
    rows = rows_of(seed, count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    near, moved = first_neighbours(rows, metric), first_neighbours(rows[order], metric, block=block)
    assert torch.equal(order[moved.index], near.index[order])
    assert torch.equal(moved.distance, near.distance[order])


@settings(max_examples=40, deadline=None)
@given(
    SEEDS, st.integers(2, 60), st.sampled_from([Finch(), Finch(level=0), CFinch(), CFinch(centroids="mean", level=0)])
)
def test_the_order_of_the_images_does_not_matter(seed: int, count: int, method):
    rows, generator = rows_of(seed, count), torch.Generator()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(together(method(rows, generator))[order][:, order], together(method(rows[order], generator)))


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(2, 60), st.floats(0.1, 3), st.floats(0.1, 3))
def test_a_tighter_bound_links_less_at_the_first_level_and_levels_nest(seed: int, count: int, one: float, other: float):
    rows = rows_of(seed, count)
    tight, loose = (finch(rows, bound=bound) for bound in sorted((one, other)))
    assert not (together(tight[0]) & ~together(loose[0])).any()
    for finer, coarser in itertools.pairwise(loose):
        assert not (together(finer) & ~together(coarser)).any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 4)), min_size=1, max_size=40), SEEDS)
def test_agreement_depends_on_neither_names_nor_order(pairs: list[tuple[int, int]], seed: int):
    labels, truth = torch.tensor(pairs).T
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(pairs)))
    renamed = torch.where(labels < 0, -1, 50 - 3 * labels)
    one, other = agreement(labels, truth), agreement(renamed[order], 7 - truth[order])
    assert abs(one.nmi - other.nmi) < 1e-12
    assert (one.f_score, one.precision, one.recall) == (other.f_score, other.precision, other.recall)
    assert 0 <= one.f_score <= 1
