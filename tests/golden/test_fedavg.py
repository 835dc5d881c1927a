"""FedAvg with a global classification layer, against the layer as papers write it: whole, masked, averaged."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import LR, MARGIN, MOMENTUM, SCALE, LinearPlan, Pair, inputs, through_unit, training, unit
from personae.algorithms import FedAvg
from personae.algorithms.fedavg import Down, State
from personae.core.algorithm import ClientInfo
from personae.core.backbone import Backbone
from personae.core.payload import ClassEmbeddings
from personae.parts.heads import average_layer
from personae.parts.margins import Margin
from toys import Faces, Rehearsal, stage_of

PEOPLE = {"ann": [0, 1], "bob": [2, 3, 4]}  # which rows of the whole layer are whose
WEIGHTS = {"ann": 4 / 13, "bob": 9 / 13}


def masked_cosface(x: np.ndarray, labels: np.ndarray, theta: np.ndarray, layer: np.ndarray, own: list[int]):
    """Gradients in theta and in the whole layer, with the logits of foreign classes at minus infinity."""
    features = x @ theta.T
    target = np.eye(len(layer))[labels]
    logits = SCALE * (unit(features) @ unit(layer).T - MARGIN * target)
    foreign = [row for row in range(len(layer)) if row not in own]
    logits[:, foreign] = -np.inf
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    slope = SCALE * (shares - target) / len(x)
    return through_unit(features, slope @ unit(layer)).T @ x, through_unit(layer, slope.T @ unit(features))


def literal_round(theta: np.ndarray, layer: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Every client trains a copy of everything; copies of everything are averaged."""
    thetas, layers = [], []
    for name, own in PEOPLE.items():
        faces = Pair().of(name).train
        x, labels = inputs(faces), np.array(own)[faces.labels.numpy()]
        w, a = theta.copy(), layer.copy()
        speed_w, speed_a = np.zeros_like(w), np.zeros_like(a)
        for _ in range(steps):
            in_w, in_a = masked_cosface(x, labels, w, a, own)
            speed_w, speed_a = MOMENTUM * speed_w + in_w, MOMENTUM * speed_a + in_a
            w, a = w - LR * speed_w, a - LR * speed_a
        thetas.append(WEIGHTS[name] * w)
        layers.append(WEIGHTS[name] * a)
    return sum(thetas), sum(layers)


@pytest.mark.parametrize("steps", [1, 3])
def test_own_rows_alone_give_what_the_whole_masked_layer_gives(tmp_path: Path, steps: int):
    sgd = training(steps)
    algorithm = FedAvg(
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=type(sgd)(**{**vars(sgd), "weight_decay": 0.0}),  # it would shrink foreign rows in the paper's way
    )
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=3),), holdings=Pair(), network=LinearPlan(), benchmarks=())
    states: list[State] = []
    start = run.federation.backbone()

    class Noting(FedAvg):
        def merge(self, state, replies, server):
            states.append(super().merge(state, replies, server))
            return states[-1]

    run.recipe = (stage_of(Noting(**vars(algorithm)), rounds=3),)
    run.run()

    def known(state: State) -> tuple[np.ndarray, np.ndarray]:
        theta = start.layout.views(state.model.flat)["1.weight"].double().numpy()
        return theta, np.concatenate([state.class_embeddings[name].vectors.double().numpy() for name in PEOPLE])

    # From the second round on: in the first, the server has no layer yet and takes the rows as they come.
    for before, after in pairwise(states):
        expected, found = literal_round(*known(before), steps), known(after)
        for one, other in zip(expected, found, strict=True):
            assert np.abs(one - other).max() < 1e-5
        assert np.abs(known(after)[1] - known(before)[1]).max() > 1e-3


def test_a_client_is_sent_its_own_rows_alone():
    rows = {name: ClassEmbeddings(torch.randn(2, 3)) for name in PEOPLE}
    model = Backbone(LinearPlan().build(torch.Generator().manual_seed(0)), 3).state()
    down = FedAvg().send(State(model=model, class_embeddings=rows), ClientInfo("bob", 1))
    assert isinstance(down, Down)
    assert down.class_embeddings is rows["bob"]
    assert FedAvg().send(State(model=model, class_embeddings=rows), ClientInfo("eve", 2)).class_embeddings is None


def test_rows_of_absent_clients_stay_and_new_ones_are_taken_as_they_come():
    known = {"ann": torch.zeros(2, 3), "bob": torch.ones(1, 3)}
    heard = {"ann": (torch.full((2, 3), 8.0), 1.0), "eve": (torch.full((4, 3), 5.0), 3.0)}
    found = average_layer(known, heard)
    assert torch.equal(found["ann"], torch.full((2, 3), 2.0))  # a quarter of the way
    assert found["bob"] is known["bob"]
    assert torch.equal(found["eve"], heard["eve"][0])
    assert torch.equal(known["ann"], torch.zeros(2, 3))
    grown = average_layer(known, {"bob": (torch.full((2, 3), 7.0), 1.0)})  # the client has found another person
    assert torch.equal(grown["bob"], torch.full((2, 3), 7.0))


def test_the_toys_have_the_sizes_that_the_weights_say():
    assert [len(Pair().of(name).train) for name in PEOPLE] == [4, 9]
    assert isinstance(Pair().of("ann").train, Faces)
    assert [Pair().of(name).train.classes for name in PEOPLE] == [len(own) for own in PEOPLE.values()]
