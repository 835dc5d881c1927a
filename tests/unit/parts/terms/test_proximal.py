"""The proximal term against its penalty and the recursion that follows from it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from personae.algorithms import FedPE
from personae.core.backbone import Backbone
from personae.parts.batches import Batch
from personae.parts.local_sgd import LocalSGD
from personae.parts.terms import Proximal
from toys import Rehearsal, quickly, random_faces, stage_of


def nothing() -> Batch:
    return Batch(torch.empty(0), torch.empty(0))


def test_it_is_half_the_squared_distance_of_the_trained_weights(backbone: Backbone):
    """And its gradient is the way from there; statistics of BatchNorm are no weights."""
    start = backbone.state()
    value = Proximal(weight=3.0).begin(backbone, start)
    backbone.flat.add_(torch.randn(backbone.flat.shape, generator=torch.Generator().manual_seed(0)))
    way = (backbone.flat - start.flat)[: backbone.layout.trainable_size]
    backbone.gradient.zero_()
    found = value(nothing(), torch.empty(0))
    found.backward()
    assert found.item() == pytest.approx(way.double().square().sum().item() / 2, rel=1e-5)
    assert torch.allclose(backbone.gradient, way, atol=1e-6)


def test_three_plain_steps_with_a_constant_slope_follow_a_recursion():
    backbone = Backbone(nn.Linear(2, 2, bias=False), 2)
    begin = backbone.flat.clone()
    push = torch.tensor([1.0, -2.0, 3.0, 0.5])
    training = LocalSGD(lr=0.1, momentum=0.0, weight_decay=0.0, batch_size=4, iterations=3)
    distance = Proximal(weight=2.0).begin(backbone, backbone.state())

    def loss(batch: Batch) -> torch.Tensor:
        return (backbone.module.weight.flatten() * push).sum() + 2.0 * distance(batch, torch.empty(0))

    training.fit(backbone, [], random_faces(0, 2, 4), loss, torch.Generator())
    moved = torch.zeros(4)
    for _ in range(3):
        moved = moved - 0.1 * (push + 2.0 * moved)
    assert torch.allclose(backbone.flat - begin, moved, atol=1e-6)


def test_it_draws_towards_the_beginning(tmp_path: Path):
    def distance(*terms: Proximal) -> float:
        run = Rehearsal(tmp_path / str(len(terms)), (stage_of(replace(quickly(FedPE()), terms=terms), rounds=1),)).run()
        begin = run.federation.backbone()
        return float((run.final() - begin.flat)[: begin.layout.trainable_size].norm())

    assert distance(Proximal(weight=10.0)) < 0.7 * distance()


@pytest.mark.parametrize("weight", [0.0, -0.1, torch.inf, torch.nan])
def test_a_weight_that_makes_no_sense_is_refused(weight: float):
    with pytest.raises(ValueError, match="it must be positive and finite"):
        Proximal(weight=weight)
