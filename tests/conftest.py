"""What all tests share."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from personae.algorithms import FedPE
from personae.core.backbone import Backbone
from personae.core.layout import Layout
from toys import Crowd, Rehearsal, TinyPlan, quickly, random_faces, stage_of

torch.set_num_threads(1)

# No example fails because the machine was busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _key_of_galleries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test makes one in the home of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAE_GALLERY_KEY", str(tmp_path_factory.mktemp("key") / "gallery.key"))
        yield


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    """A test that draws from the global generators draws the same in every run and in every order."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


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


@pytest.fixture(scope="session")
def faces_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic faces rendered once for all runs of the quick recipe."""
    return tmp_path_factory.mktemp("faces")


@pytest.fixture(scope="session")
def undisturbed(faces_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the scaled-down quick recipe leaves behind when nobody kills it."""
    from killing import go, results  # everything that an experiment needs, which few tests do

    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert go(out, faces_cache) == 0
    found = results(out)
    assert {name.split("/")[0] for name in found} >= {"private", "models", "evaluation", "metrics.jsonl"}
    return found
