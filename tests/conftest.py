"""What all tests share."""

from pathlib import Path

import pytest
import torch

from personae.algorithms import FedPE
from personae.core.backbone import Backbone
from personae.core.layout import Layout
from toys import Crowd, Rehearsal, TinyPlan, quickly, random_faces, stage_of

torch.set_num_threads(1)


@pytest.fixture
def backbone() -> Backbone:
    """A tiny network with convolution, BatchNorm and linear layers."""
    plan = TinyPlan()
    return Backbone(plan.build(torch.Generator().manual_seed(3)), plan.embedding)


@pytest.fixture
def layout(backbone: Backbone) -> Layout:
    return backbone.layout


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def faces():
    return random_faces(11, 3, 5)


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    """FedPE for two rounds over four clients."""
    return Rehearsal(tmp_path, (stage_of(quickly(FedPE())),))
