"""The objective of a local step: an algorithm's own loss and the terms that are added to it."""

import pytest
import torch

from personae.core.backbone import Backbone
from personae.parts.batches import Batch
from personae.parts.local_step import LocalStep
from personae.parts.terms import Proximal


def test_the_objective_weighs_and_adds(backbone: Backbone):
    """The loss of the algorithm, and every term times its weight."""
    start = backbone.state()
    step = LocalStep(terms=(Proximal(weight=3.0), Proximal(weight=0.5)))
    backbone.weights.add_(0.1)
    batch = Batch(torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0]))
    rows = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    plain, held, more = (
        objective(batch).item()
        for objective in (
            LocalStep().objective(backbone, start, step.classification(rows)),
            step.objective(backbone, start, step.classification(rows)),
            step.objective(backbone, start, step.classification(rows[:1], rows[1:]), Proximal(weight=2.0)),
        )
    )
    distance = 0.1**2 * backbone.layout.trainable_size / 2
    assert held - plain == pytest.approx(3.5 * distance, rel=1e-3)
    assert more - plain == pytest.approx(5.5 * distance, rel=1e-3)
