"""q-FedAvg worked by hand."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import LR, MARGIN, MOMENTUM, SCALE, LinearPlan, Pair, client, cosface, inputs, training, unit
from personae.algorithms import FedPE, QFedAvg
from personae.algorithms.fedpe import State, Up
from personae.algorithms.q_fedavg import BEFORE
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.payload import Count, ModelState, Scalars
from personae.core.rng import generator
from personae.errors import Diverged
from personae.parts.margins import Margin
from personae.runtime.inprocess import SameProcess
from toys import TRAINING, Rehearsal, Relay, TinyPlan, stage_of

COUNTS = {"ann": 4, "bob": 9}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, q: float, weighting: str):
    algorithm = QFedAvg(
        q=q, margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN), training=training(2), weighting=weighting
    )
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Pair(), network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()

    rows: dict[str, np.ndarray | None] = {"ann": None, "bob": None}
    L = (1 - MOMENTUM) / LR
    for round_ in range(2):
        deltas, scales, befores = [], [], []
        for name, count in COUNTS.items():
            faces = Pair().of(name).train
            x, labels = inputs(faces), faces.labels.numpy()
            if rows[name] is None:
                means = [unit(x @ theta.T)[labels == person].sum(0) for person in range(faces.classes)]
                rows[name] = unit(np.stack(means))
            loss, _, _ = cosface(x, labels, theta, rows[name])
            end, rows[name], _ = client(faces, theta, rows[name], 2)
            p = count if weighting == "samples" else 1
            way = L * (theta - end)
            deltas.append(p * loss**q * way)
            scales.append(p * (q * loss ** (q - 1) * (way**2).sum() + L * loss**q))
            befores.append(loss)
        theta = theta - sum(deltas) / sum(scales)
        assert run.notebook.rounds()[round_]["scalars"][BEFORE] == pytest.approx(np.mean(befores), rel=1e-5)
    found = start.layout.views(run.final())["1.weight"].numpy()
    assert np.abs(found - theta).max() < 1e-5


def test_the_lipschitz_constant_follows_the_schedule_of_local_steps(backbone: Backbone):
    """By default L = (1 - m) / eta, with eta of the middle of the round: half of lr in round 2 of 3, linearly."""
    model = backbone.state()
    end = ModelState(model.layout, model.flat + 0.1)
    up = Up(model=end, samples=Count(3), training=Scalars({BEFORE: 2.0}))
    server = Server(model, backbone, None, None, generator(0), 2, 3)
    sgd = dataclasses.replace(training(2), schedule="linear", span="stage", momentum=0.0)
    heavy = dataclasses.replace(sgd, momentum=0.9)

    def merge(**options) -> torch.Tensor:
        replies = iter([Reply(ClientInfo("ann", 0), up)])
        return QFedAvg(**options).merge(State(model=model), replies, server).model.flat

    assert torch.allclose(merge(training=sgd), merge(lipschitz=2 / LR), atol=1e-7)
    assert torch.allclose(merge(training=heavy), merge(lipschitz=0.2 / LR), atol=1e-7)
    assert not torch.allclose(merge(training=sgd), merge(lipschitz=1 / LR), atol=1e-4)


def test_q_of_zero_is_fedpe(tmp_path: Path):
    settings = {"training": training(2)}
    runs = [
        Rehearsal(tmp_path / kind.name, (stage_of(kind(**settings), name="same"),)).run() for kind in (FedPE, QFedAvg)
    ]
    zero = Rehearsal(tmp_path / "zero", (stage_of(QFedAvg(q=0.0, **settings), name="same"),)).run()
    assert torch.allclose(zero.final(), runs[0].final(), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(runs[1].final(), runs[0].final(), rtol=1e-3, atol=1e-3)


def replies(layout, w: torch.Tensor, ways: dict[str, float], losses: dict[str, float]):
    for index, (name, way) in enumerate(ways.items()):
        flat = w.clone()
        flat[index] += way
        figures = Scalars({"loss": 0.0} | ({BEFORE: losses[name]} if name in losses else {}))
        up = Up(model=ModelState(layout, flat), samples=Count(5), training=figures)
        yield Reply(ClientInfo(name, index), up)


def test_the_client_with_the_higher_loss_moves_the_model_more():
    backbone = Backbone(TinyPlan().build(), 8)
    w = backbone.state()
    server = Server(w, backbone, None, None, generator(0), 1, 1)
    shares = []
    for q in (0.0, 1.0, 4.0):
        merged = QFedAvg(q=q).merge(
            State(model=w), replies(w.layout, w.flat, {"ann": 0.1, "bob": 0.1}, {"ann": 3.0, "bob": 1.0}), server
        )
        moved = (merged.model.flat - w.flat)[:2]
        shares.append(float(moved[0] / moved.sum()))
    assert shares == pytest.approx([0.5, 0.75, 3**4 / (3**4 + 1)], rel=1e-4)


@pytest.mark.parametrize("claimed", [{"ann": -5.0, "bob": 1.0}, {"bob": 1.0}])
def test_a_loss_that_cannot_be_counts_as_none(claimed: dict[str, float]):
    backbone = Backbone(TinyPlan().build(), 8)
    w = backbone.state()
    server = Server(w, backbone, None, None, generator(0), 1, 1)
    merged = QFedAvg(q=2.0).merge(State(model=w), replies(w.layout, w.flat, {"ann": 0.1, "bob": 0.1}, claimed), server)
    moved = merged.model.flat - w.flat
    assert abs(float(moved[0])) < 1e-9 < float(moved[1])


@pytest.mark.parametrize("q", [0.001, 0.5])
@pytest.mark.parametrize("claim", [{"ann": 0.0, "bob": 1.0}, {"bob": 1.0}])
def test_who_claims_no_loss_does_not_hold_everybody_back(claim: dict[str, float], q: float):
    """F^(q - 1) has no bound where q is below 1, and a single client could end the training of all."""
    backbone = Backbone(TinyPlan().build(), 8)
    w = backbone.state()
    server = Server(w, backbone, None, None, generator(0), 1, 1)

    def moved(losses: dict[str, float]) -> float:
        merged = QFedAvg(q=q).merge(State(model=w), replies(w.layout, w.flat, {"ann": 0.1, "bob": 0.1}, losses), server)
        return float((merged.model.flat - w.flat)[1])

    assert moved(claim) > 0.05 * moved({"ann": 1.0, "bob": 1.0}) > 0


def test_losses_beyond_all_bounds_are_told():
    backbone = Backbone(TinyPlan().build(), 8)
    w = backbone.state()
    server = Server(w, backbone, None, None, generator(0), 1, 1)
    with pytest.raises(Diverged, match="lower q"):
        QFedAvg(q=300.0).merge(State(model=w), replies(w.layout, w.flat, {"ann": 0.1}, {"ann": 30.0}), server)
    merged = QFedAvg(q=200.0).merge(State(model=w), replies(w.layout, w.flat, {"ann": 0.1}, {"ann": 30.0}), server)
    assert merged.model.flat.isfinite().all()
    for wrong in ({"q": -1.0}, {"q": math.inf}, {"lipschitz": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            QFedAvg(**wrong)


def test_the_length_of_a_step_is_that_of_its_weights_and_not_of_statistics():
    backbone = Backbone(TinyPlan().build(), 8)
    w = backbone.state()
    server = Server(w, backbone, None, None, generator(0), 1, 1)
    found = []
    for shift in (0.0, 50.0):
        (reply,) = replies(w.layout, w.flat, {"ann": 0.1}, {"ann": 3.0})
        reply.up.model.flat[w.layout.trainable_size :] += shift
        merged = QFedAvg(q=1.0).merge(State(model=w), [reply], server)
        found.append((merged.model.flat - w.flat)[: w.layout.trainable_size])
    assert torch.equal(*found)
    assert float(found[0].abs().max()) > 1e-3


@pytest.mark.parametrize("claim", [1e308, 1e14, 1000.0])
def test_a_loss_that_nobody_can_have_is_that_clients_fault(tmp_path: Path, claim: float):
    class Boasting(Relay):
        def tamper(self, answers):
            for answer in answers:
                if answer.client.name == "bob" and isinstance(answer.message, Up):
                    answer = dataclasses.replace(
                        answer,
                        message=dataclasses.replace(answer.message, training=Scalars({"loss": 1.0, BEFORE: claim})),
                    )
                yield answer

    run = Rehearsal(tmp_path, (stage_of(QFedAvg(training=TRAINING, q=5.0)),))
    run.run(Boasting(SameProcess(run.federation)))
    assert [list(event["rejected"]) for event in run.notebook.rounds()] == [["bob"], ["bob"]]


@pytest.mark.parametrize("kind", ["cosface", "arcface"])
def test_no_loss_exceeds_the_largest(kind: str):
    margin = Margin(kind=kind, scale=30.0, margin=0.5)
    rows = torch.tensor([[1.0, 0.0]] + [[-1.0, 0.0]] * 1000)
    worst = float(margin.loss(torch.tensor([[-1.0, 0.0]]), rows, torch.tensor([0])))
    assert 30 * 2 < worst <= margin.largest_loss < 2 * worst
