"""Embedding regularisation (Eq. 4 of HF-MAML) against its formula, and as a term of the algorithms' losses."""

from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import LinearPlan, Pair, inputs
from personae.algorithms import ALGORITHMS, FedFace
from personae.core.algorithm import AnyAlgorithm
from personae.core.backbone import Backbone
from personae.parts.batches import Batch
from personae.parts.clustering import KMeans
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from personae.parts.meta import MetaSGD
from personae.parts.terms import EmbeddingRegularisation
from personae.parts.terms.embedding_regularisation import embedding_drift
from toys import Rehearsal, stage_of


def test_it_is_one_minus_the_cosine_mean_over_the_batch():
    source = np.random.default_rng(0)
    current, beginning = source.standard_normal((2, 6, 4))
    cosines = (current * beginning).sum(1) / np.linalg.norm(current, axis=1) / np.linalg.norm(beginning, axis=1)
    found = embedding_drift(torch.from_numpy(current), torch.from_numpy(beginning))
    assert found.item() == pytest.approx(np.mean(1 - cosines), rel=1e-12)


def test_its_gradient_is_exact():
    source = torch.Generator().manual_seed(0)
    current, beginning = torch.randn(2, 5, 4, generator=source, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: embedding_drift(x, beginning), current.requires_grad_())


def test_half_precision_is_compared_in_float32():
    features = torch.randn(4, 8).bfloat16()
    assert embedding_drift(features, features).dtype == torch.float32


def images() -> torch.Tensor:
    return torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1


def batch() -> Batch:
    return Batch(images(), torch.zeros(6, dtype=torch.int64))


def test_it_is_zero_before_the_first_step_and_grows_with_the_weights(backbone: Backbone):
    """In training mode, too, where BatchNorm normalises by the batch."""
    beginning = backbone.state()
    term = EmbeddingRegularisation(weight=2.0).begin(backbone, beginning)
    backbone.module.train()
    assert term(batch(), backbone.module(images())).item() == pytest.approx(0, abs=1e-6)
    backbone.weights.add_(0.05 * torch.randn(backbone.weights.shape, generator=torch.Generator().manual_seed(2)))
    features = backbone.module(images())
    found = term(batch(), features)
    again = Backbone(backbone.module, 8)
    again.load(beginning)
    again.module.train()
    expected = (1 - torch.nn.functional.cosine_similarity(features, again.module(images()))).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert found.item() > 0.01


def test_the_beginning_is_not_written_to_and_gets_no_gradient(backbone: Backbone):
    """Nor do its passes enter the running statistics of the model in training."""
    beginning = backbone.state()
    was = beginning.flat.clone()
    term = EmbeddingRegularisation(weight=1.0).begin(backbone, beginning)
    backbone.module.train()
    features = backbone.module(images())
    statistics = backbone.flat.clone()
    term(batch(), features).backward()
    assert torch.equal(beginning.flat, was)
    assert torch.equal(backbone.flat, statistics)


STILL = Augmentation(flip=False, shift=0, colour=0.0)
SGD = LocalSGD(lr=0.005, momentum=0.0, iterations=40, augmentation=STILL)
TRAINED = [
    kind for kind in ALGORITHMS.values() if "ModelState" in kind.types.up.payloads().values()
]  # all whose clients train the model that is shared
OPTIONS = {
    "training": SGD,
    "meta": MetaSGD(lr=0.005, iterations=40, augmentation=STILL),
    "head_init": "random",  # much to learn
    "use_public_faces": False,  # FedFR
    "clustering": KMeans(clusters=3),  # unsupervised
    "q": 0.0,  # q-FedAvg: with more, the server goes the less of the way the longer it is
}


def held(kind: type[AnyAlgorithm], weight: float) -> AnyAlgorithm:
    options = {name: value for name, value in OPTIONS.items() if hasattr(kind(), name)}
    return kind(**options, terms=(EmbeddingRegularisation(weight=weight),) if weight else ())


ALONE = Pair(sizes=((1, 4), (1, 6)))  # one person each, for which FedFace has another loss


@pytest.mark.parametrize(("kind", "pair"), [*((kind, Pair()) for kind in TRAINED), (FedFace, ALONE)])
def test_every_algorithm_that_trains_the_shared_model_can_be_held_back_by_it(tmp_path: Path, kind, pair: Pair):
    """The embeddings of clients that are held more strongly stay nearer to those they began with."""
    x = torch.cat([torch.from_numpy(inputs(pair.of(name).train)) for name in pair.clients]).float()
    drifts = []
    for strength in (0.0, 3.0, 10.0):
        stage = stage_of(held(kind, strength), rounds=1)
        run = Rehearsal(
            tmp_path / str(strength), (stage,), holdings=pair, network=LinearPlan(), benchmarks=(), source="ann"
        )
        start = run.federation.backbone()
        run.run()
        before, after = (start.layout.views(flat)["1.weight"] for flat in (start.flat, run.final()))
        drifts.append(float(embedding_drift(x @ after.T, x @ before.T)))
    assert drifts[2] < drifts[1] < drifts[0]
    assert drifts[2] < 0.8 * drifts[0]
