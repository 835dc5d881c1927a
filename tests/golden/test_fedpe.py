"""FedPE worked by hand: two clients, a linear network, every formula written out in float64."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from personae.algorithms import FedPE
from personae.algorithms.fedpe import State, Up
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.payload import Count, ModelState, Scalars
from personae.core.rng import generator
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from personae.runtime.federation import ClientFaces
from personae.runtime.store import PrivateStore
from toys import Crowd, Faces, Rehearsal, TinyPlan, random_faces, stage_of

LR, MOMENTUM, DECAY, SCALE, MARGIN = 0.1, 0.9, 0.01, 8.0, 0.3
SIZES = {"ann": (2, 2), "bob": (3, 3)}  # people, images of each: 4 and 9 images


@dataclass(frozen=True)
class LinearPlan:
    """Pixels times a matrix."""

    embedding: int = 3

    def build(self, generator: torch.Generator | None = None) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(2 * 2 * 3, self.embedding, bias=False))
        nn.init.normal_(module[1].weight, std=0.5, generator=generator)
        return module


@dataclass(frozen=True)
class Pair(Crowd):
    clients: tuple[str, ...] = ("ann", "bob")

    def of(self, client: str) -> ClientFaces:
        people, images = SIZES[client]
        faces = random_faces(people, people, images, side=2)
        return ClientFaces(faces, faces, faces)


def inputs(faces: Faces) -> np.ndarray:
    """Channel by channel, row by row, in [-1, 1]."""
    return faces.pixels.numpy().transpose(0, 3, 1, 2).reshape(len(faces), -1) / 127.5 - 1


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def through_unit(rows: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The gradient at x of a function of x/|x|."""
    direction = unit(rows)
    along = (slope * direction).sum(1, keepdims=True)
    return (slope - along * direction) / np.linalg.norm(rows, axis=1, keepdims=True)


def cosface(x: np.ndarray, labels: np.ndarray, theta: np.ndarray, rows: np.ndarray):
    """Loss, gradient in theta, gradient in the rows."""
    features = x @ theta.T
    target = np.eye(len(rows))[labels]
    logits = SCALE * (unit(features) @ unit(rows).T - MARGIN * target)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(shares[target == 1]).mean()
    slope = SCALE * (shares - target) / len(x)
    in_features = through_unit(features, slope @ unit(rows))
    return loss, in_features.T @ x, through_unit(rows, slope.T @ unit(features))


def client(faces: Faces, theta: np.ndarray, rows: np.ndarray | None, steps: int):
    """A client's round: full batches, momentum from rest; gives theta_k, W_k and the mean loss."""
    x, labels = inputs(faces), faces.labels.numpy()
    if rows is None:  # each person's mean direction
        rows = unit(np.stack([unit(x @ theta.T)[labels == person].sum(0) for person in range(faces.classes)]))
    speed_theta, speed_rows, losses = np.zeros_like(theta), np.zeros_like(rows), []
    for _ in range(steps):
        loss, in_theta, in_rows = cosface(x, labels, theta, rows)
        speed_theta = MOMENTUM * speed_theta + in_theta + DECAY * theta
        speed_rows = MOMENTUM * speed_rows + in_rows + DECAY * rows
        theta, rows = theta - LR * speed_theta, rows - LR * speed_rows
        losses.append(loss)
    return theta, rows, np.mean(losses)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("steps", [1, 3])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, weighting: str, steps: int):
    training = LocalSGD(
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        batch_size=64,
        iterations=steps,
        augmentation=Augmentation(flip=False, shift=0, colour=0.0),
    )
    algorithm = FedPE(
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN), training=training, weighting=weighting, rows="mean"
    )
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Pair(), network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()

    rows: dict[str, np.ndarray | None] = {"ann": None, "bob": None}
    weights = {"ann": 4 / 13, "bob": 9 / 13} if weighting == "samples" else {"ann": 0.5, "bob": 0.5}
    for round_ in range(2):
        ends, losses = {}, []
        for name in rows:
            ends[name], rows[name], loss = client(Pair().of(name).train, theta, rows[name], steps)
            losses.append(loss)
        theta = sum(weights[name] * ends[name] for name in ends)
        assert run.notebook.rounds()[round_]["scalars"]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)

    # float32 against float64 over at most six steps.
    found = start.layout.views(run.final())["1.weight"].numpy()
    assert np.abs(found - theta).max() < 1e-5
    assert np.abs(theta - start.layout.views(start.flat)["1.weight"].numpy()).max() > 1e-2
    for name, expected in rows.items():
        kept = PrivateStore.of(tmp_path / "private", name).load("fedpe", FedPE.types.private, start.layout)
        assert np.abs(kept.rows.numpy() - expected).max() < 1e-5


def test_statistics_of_batch_norm_are_averaged_like_weights_and_counters_stay_out_of_it():
    backbone = Backbone(TinyPlan().build(), 8)
    layout = backbone.layout
    assert not any("num_batches_tracked" in name for name in layout.names)
    counts = {"ann": 1, "bob": 3}
    replies, models = [], []
    for index, (name, count) in enumerate(counts.items()):
        entries = {key: torch.randn_like(view) for key, view in layout.views(torch.zeros(layout.size)).items()}
        models.append(entries)
        state = ModelState(layout, layout.flatten(entries))
        replies.append(
            Reply(ClientInfo(name, index), Up(model=state, samples=Count(count), training=Scalars({"loss": 1.0})))
        )
    server = Server(backbone.state(), backbone, None, None, generator(0), 1, 1)
    merged = FedPE().merge(State(model=backbone.state()), iter(replies), server)
    views = layout.views(merged.model.flat)
    for key in ("1.running_mean", "1.running_var", "5.running_mean", "5.running_var", "0.weight", "4.bias"):
        expected = 0.25 * models[0][key].double() + 0.75 * models[1][key].double()
        assert torch.allclose(views[key].double(), expected, rtol=0, atol=1e-6), key


def test_counters_of_a_finished_model_are_as_in_a_new_network(tmp_path: Path):
    run = Rehearsal(tmp_path, (stage_of(FedPE(training=LocalSGD(iterations=4, batch_size=4))),)).run()
    model, fresh = run.notebook.models["fedpe"], TinyPlan().build().state_dict()
    counters = [name for name, entry in fresh.items() if not entry.is_floating_point()]
    assert len(counters) == 2
    assert all(torch.equal(model[name], fresh[name]) for name in counters)
    assert not torch.equal(model["1.running_mean"], fresh["1.running_mean"])
