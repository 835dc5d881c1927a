"""FINCH and C-FINCH worked by hand on a line, with every tie and bound decided on paper."""

import math

import pytest
import torch

from personae.parts.clustering import finch, first_neighbours

LINE = torch.tensor([[0.0], [1.0], [3.0], [10.0], [11.5], [30.0]])
# nearest:            1       0      1      11.5     10     11.5
# distance:           1       1      2      1.5      1.5    18.5


def levels(bound: float = math.inf, points: torch.Tensor = LINE) -> list[list[int]]:
    return [level.tolist() for level in finch(points, bound=bound)]


def test_first_neighbours_and_their_distances():
    near = first_neighbours(LINE)
    assert near.index.tolist() == [1, 0, 1, 4, 3, 4]
    assert near.distance.tolist() == [1, 1, 2, 1.5, 1.5, 18.5]


def test_finch_links_all_first_neighbours_and_leaves_the_single_cluster_out():
    assert levels() == [[0, 0, 0, 1, 1, 1]]  # 0-1-3 and 10-11.5-30; their means are linked, and that is everything


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (0.5, [[0, 1, 2, 3, 4, 5]]),  # nothing is that near
        (1.0, [[0, 1, 2, 3, 4, 5]]),  # the bound itself is out
        (1.2, [[0, 0, 1, 2, 3, 4]]),
        # Mutual neighbours count once: an adjacency of 2 for 10 and 11.5 would make their distance 3 and cut them.
        (1.8, [[0, 0, 1, 2, 2, 3]]),  # then the means 0.5, 3, 10.75, 30 are 2.5 apart or more
        (2.0, [[0, 0, 1, 2, 2, 3]]),  # 3 is at a distance of exactly 2 from 1
        (2.1, [[0, 0, 0, 1, 1, 2]]),
        (10.0, [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 1]]),  # means 4/3 and 10.75: 9.42; then 5.1 and 30: 24.9
        (20.0, [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]),  # means 4/3 and 17.17: 15.83; a bound may leave one cluster
    ],
)
def test_c_finch_links_only_what_is_nearer_than_the_bound(bound: float, expected: list[list[int]]):
    assert levels(bound) == expected


def test_the_bound_holds_at_every_level_for_the_means_of_the_images():
    """0 and 1, 3 and 4.2: the means 0.5 and 3.6 are 3.1 apart, although 1 and 3 are 2 apart."""
    points = torch.tensor([[0.0], [1.0], [3.0], [4.2]])
    assert levels(3.0, points) == [[0, 0, 1, 1]]
    assert levels(3.2, points) == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_the_mean_is_over_images_and_not_over_clusters():
    """Nine images at (0, 0) and two about (0, 7) are one cluster; the third, at (6.9, 3.5), is 7.74 from either.

    From the mean of all eleven images, (0, 1.27), it is 7.25 away and stays apart; from the mean of the two means,
    (0, 3.5), it would be 6.9 away and join.
    """
    points = torch.cat([torch.zeros(9, 2), torch.tensor([[0.0, 6.95], [0.0, 7.05], [6.9, 3.5]])])
    assert levels(7.1, points)[-1] == [0] * 11 + [1]
    assert levels(7.3, points)[-1] == [0] * 12


def test_equally_near_neighbours_the_first_one_counts():
    """1 lies between 0 and 2, which is where the chain of four would break or hold."""
    assert first_neighbours(torch.tensor([[0.0], [1.0], [2.0], [3.0]])).index.tolist() == [1, 0, 1, 2]
    square = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert first_neighbours(square).index.tolist() == [2, 2, 0, 0]


def test_copies_are_each_others_neighbours():
    same = torch.ones(5, 3)
    near = first_neighbours(same)
    assert near.index.tolist() == [1, 0, 0, 0, 0]
    assert near.distance.tolist() == [0] * 5
    assert levels(0.1, same) == [[0, 0, 0, 0, 0]]
