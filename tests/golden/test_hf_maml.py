"""HF-MAML worked by hand, with a local and with a global classification layer."""

from pathlib import Path

import numpy as np
import pytest

from byhand import MARGIN, SCALE, LinearPlan, Pair, cosface, inputs, through_unit, unit
from personae.algorithms import ALGORITHMS, HFMAML, HFMAMLGlobal
from personae.core.payload import ClassEmbeddings
from personae.parts.images import Augmentation
from personae.parts.margins import Margin
from personae.parts.meta import MetaSGD
from personae.parts.terms import EmbeddingRegularisation
from personae.privacy.disclosure import sends, warning
from personae.runtime.store import PrivateStore
from toys import Rehearsal, stage_of

ALPHA, BETA, DELTA, C = 0.1, 0.2, 0.3, 0.7
WEIGHTS = {"ann": 4 / 13, "bob": 9 / 13}


def options(order: str, regularisation: float) -> dict:
    # Batches of all images, so that D, D' and D'' hold the same ones and nothing is left to chance.
    return {
        "margin": Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        "meta": MetaSGD(
            order=order,
            inner_lr=ALPHA,
            lr=BETA,
            delta=DELTA,
            batch_size=64,
            iterations=3,
            sampling="independent",
            augmentation=Augmentation(flip=False, shift=0, colour=0.0),
        ),
        "terms": (EmbeddingRegularisation(weight=regularisation),) if regularisation else (),
        "head_init": "mean",
    }


def slope(x, labels, beginning, strength, vector, shape):
    """Gradient and value of F at (theta, rows) as one vector: margin loss + C (1 - cos(x theta0, x theta))."""
    theta, rows = vector[: shape[0] * shape[1]].reshape(shape), vector[shape[0] * shape[1] :].reshape(-1, shape[0])
    loss, in_theta, in_rows = cosface(x, labels, theta, rows)
    features, before = x @ theta.T, x @ beginning.T
    loss += strength * np.mean(1 - (unit(features) * unit(before)).sum(1))
    in_theta = in_theta + (through_unit(features, -strength * unit(before) / len(x))).T @ x
    return loss, np.concatenate([in_theta.ravel(), in_rows.ravel()])


def meta_steps(faces, theta, rows, order, strength, steps=3):
    """Three meta steps; gives theta_k, a_k and the mean losses before and after adaptation."""
    x, labels, beginning, shape = inputs(faces), faces.labels.numpy(), theta, theta.shape
    w = np.concatenate([theta.ravel(), rows.ravel()])
    before, after = [], []
    for _ in range(steps):
        loss, g = slope(x, labels, beginning, strength, w, shape)
        before.append(loss)
        loss, v = slope(x, labels, beginning, strength, w - ALPHA * g, shape)
        after.append(loss)
        if order == "first":
            w = w - BETA * v
            continue
        delta = DELTA if order == "hessian-free" else 1e-5
        up, down = (slope(x, labels, beginning, strength, w + sign * delta * v, shape)[1] for sign in (1, -1))
        w = w - BETA * (v - ALPHA * (up - down) / (2 * delta))
    return w[: theta.size].reshape(shape), w[theta.size :].reshape(rows.shape), np.mean(before), np.mean(after)


def beginning(faces, theta):
    x, labels = inputs(faces), faces.labels.numpy()
    return unit(np.stack([unit(x @ theta.T)[labels == person].sum(0) for person in range(faces.classes)]))


@pytest.mark.parametrize("order", ["hessian-free", "first", "exact"])
@pytest.mark.parametrize("strength", [0.0, C])
@pytest.mark.parametrize("kind", [HFMAML, HFMAMLGlobal])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, kind, order: str, strength: float):
    algorithm = kind(**options(order, strength))
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Pair(), network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()

    rows: dict[str, np.ndarray] = {}
    for round_ in range(2):
        ends, losses, adapted = {}, [], []
        for name in WEIGHTS:
            faces = Pair().of(name).train
            first = name not in rows
            received = beginning(faces, theta) if first else rows[name]
            ends[name], sent, loss, later = meta_steps(faces, theta, received, order, strength)
            if kind is HFMAMLGlobal and not first:
                # the mean of whole layers: the other client sends these rows back as it got them
                sent = WEIGHTS[name] * sent + (1 - WEIGHTS[name]) * received
            rows[name] = sent
            losses.append(loss)
            adapted.append(later)
        theta = sum(WEIGHTS[name] * ends[name] for name in ends)
        scalars = run.notebook.rounds()[round_]["scalars"]
        assert scalars["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert scalars["adapted"] == pytest.approx(np.mean(adapted), rel=1e-5)
        assert scalars["adapted"] < scalars["loss"]

    # float32 against float64 over six meta steps
    found = start.layout.views(run.final())["1.weight"].numpy()
    assert np.abs(found - theta).max() < 2e-5
    assert np.abs(theta - start.layout.views(start.flat)["1.weight"].numpy()).max() > 1e-2
    for name, expected in rows.items():
        if kind is HFMAMLGlobal:
            kept = run.checkpoints.finished("hf_maml_global").class_embeddings[name].vectors
        else:
            kept = PrivateStore.of(tmp_path / "private", name).load("hf_maml", HFMAML.types.private, start.layout)
            kept = kept.class_embeddings
        assert np.abs(kept.numpy() - expected).max() < 2e-5


def test_with_a_local_layer_no_class_embedding_crosses_by_type():
    for name in ("hf_maml", "fedpe", "q_fedavg"):
        types = ALGORITHMS[name].types
        kinds = {*types.up.payloads().values(), *types.down.payloads().values()}
        assert ClassEmbeddings.__name__ not in kinds
        assert warning(ALGORITHMS[name]) is None
    for name in ("hf_maml_global", "fedavg"):
        assert ClassEmbeddings.__name__ in sends(ALGORITHMS[name])
        assert "a biometric template of each person leaves the client" in warning(ALGORITHMS[name])
