"""Regularisers over drawn anchors: the exact one on average, and nothing else for all of them."""

from itertools import combinations
from typing import Any

import pytest
import torch

from personae.algorithms import FedFace, FedGC
from personae.core.rng import generator
from personae.parts.corrections import drawn, softmax_regulariser, spreadout
from personae.parts.margins import Margin

OWNERS = torch.tensor([0, 0, 1, 2, 2, 2])
FORMS: dict[str, Any] = {
    "softmax": lambda rows, **how: softmax_regulariser(rows, OWNERS, Margin(kind="softmax"), **how),
    "cosface": lambda rows, **how: softmax_regulariser(rows, OWNERS, Margin(scale=4.0), **how),
    "spreadout": lambda rows, **how: spreadout(rows, 0.9, **how),
}
each_form = pytest.mark.parametrize("form", FORMS)


def rows_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(len(OWNERS), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@each_form
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_mean_over_all_draws_is_the_exact_one(form: str, reduction: str, count: int):
    rows, regulariser = rows_of(), FORMS[form]
    exact = regulariser(rows, reduction=reduction)
    draws = [
        regulariser(rows, reduction=reduction, anchors=torch.tensor(chosen), block=3)
        for chosen in combinations(range(len(rows)), count)
    ]
    torch.testing.assert_close(torch.stack([draw.value for draw in draws]).mean(), exact.value)
    torch.testing.assert_close(torch.stack([draw.gradient for draw in draws]).mean(0), exact.gradient)
    assert not torch.allclose(draws[0].gradient, exact.gradient)


@each_form
def test_all_anchors_are_the_exact_one(form: str):
    rows, regulariser = rows_of(1), FORMS[form]
    torch.testing.assert_close(regulariser(rows, anchors=torch.arange(6)), regulariser(rows))


def test_draws_are_ascending_without_repetition_and_none_where_all_are_wanted():
    rows = torch.zeros(50, 2)
    found = drawn(20, rows, generator(0, "x"))
    assert found is not None
    assert len(found.unique()) == 20
    assert torch.equal(found, found.sort().values)
    assert torch.equal(found, drawn(20, rows, generator(0, "x")))
    assert not torch.equal(found, drawn(20, rows, generator(1, "x")))
    assert drawn(50, rows, generator(0)) is None
    assert drawn(None, rows, generator(0)) is None


def test_the_algorithms_hand_the_draw_on():
    rows = torch.nn.functional.normalize(rows_of(2).float(), dim=1)
    moving = torch.ones(6, 1, dtype=torch.bool)
    gc = FedGC(strength=1.0, margin=Margin(kind="softmax"), anchors=2)
    chosen = drawn(2, rows, generator(3))
    exact = softmax_regulariser(rows, OWNERS, gc.margin, anchors=chosen).gradient
    assert torch.equal(gc.step(rows, OWNERS, moving, 0.1, chosen), rows - 0.1 * exact)
    face = FedFace(strength=0.1, spread=1.2, anchors=2, steps=2)
    source, expected = generator(4), rows
    for _ in range(2):
        slope = spreadout(expected, 1.2, anchors=drawn(2, expected, source))
        expected = torch.nn.functional.normalize(expected - 0.1 * slope.gradient)
    assert torch.equal(face.spread_out(rows, moving, generator(4)), expected)
    with pytest.raises(ValueError, match="anchors is 0"):
        FedFace(anchors=0)
