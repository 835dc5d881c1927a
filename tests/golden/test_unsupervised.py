"""Domain-constrained federated learning worked by hand: a source, a target with pseudo-labels, two rounds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import MARGIN, SCALE, LinearPlan, Pair, client, cosface, training, unit
from personae.algorithms import Unsupervised
from personae.algorithms.unsupervised import Private
from personae.parts.margins import Margin
from personae.runtime.store import PrivateStore
from toys import Faces, Rehearsal, stage_of

FOUND = [0, 0, 2, 1, 1, -1, 2, 2, -1]  # bob's nine faces in three clusters of his own finding, two faces in none
STRENGTH = 3.0


def constrained(anchor: np.ndarray):
    """Eq. 3: lambda / 2 |theta - theta_r|^2 in the loss, and so lambda (theta - theta_r) in the gradient."""

    def loss_of(x, labels, theta, rows):
        loss, in_theta, in_rows = cosface(x, labels, theta, rows)
        way = theta - anchor
        return loss + STRENGTH / 2 * (way**2).sum(), in_theta + STRENGTH * way, in_rows

    return loss_of


@pytest.mark.parametrize("constraint", ["source", "all", "none"])
def test_a_source_and_a_target_by_hand(tmp_path: Path, constraint: str):
    algorithm = Unsupervised(
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=training(3),
        strength=0.0 if constraint == "none" else STRENGTH,
        constrained="all" if constraint == "all" else "source",
    )
    stage = stage_of(algorithm, rounds=2)
    run = Rehearsal(tmp_path, (stage,), holdings=Pair(), network=LinearPlan(), benchmarks=(), source="ann")
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    bob_rows = unit(np.random.default_rng(4).normal(size=(3, 3)))
    kept = Private(class_embeddings=torch.from_numpy(bob_rows).float(), labels=torch.tensor(FOUND))
    PrivateStore.of(tmp_path / "private", "bob").save("unsupervised", 0, kept)
    run.run()

    everything, chosen = Pair().of("bob").train, torch.tensor(FOUND) >= 0
    bobs = Faces(everything.pixels[chosen], torch.tensor(FOUND)[chosen], 3)
    ann_rows, losses, moves = None, [], []
    for _ in range(2):
        ann_loss = cosface if constraint == "none" else constrained(theta)
        bob_loss = constrained(theta) if constraint == "all" else cosface
        ann, ann_rows, one = client(Pair().of("ann").train, theta, ann_rows, 3, ann_loss)
        bob, bob_rows, other = client(bobs, theta, bob_rows, 3, bob_loss)
        moves.append(np.linalg.norm(ann - theta))
        theta = (ann + bob) / 2  # 1/N, whatever the number of faces
        losses.append((one + other) / 2)

    # float32 against float64 over six steps.
    assert np.abs(start.layout.views(run.final())["1.weight"].numpy() - theta).max() < 1e-5
    assert [event["scalars"]["loss"] for event in run.notebook.rounds()] == pytest.approx(losses, abs=1e-5)
    assert [event["scalars"]["source_move"] for event in run.notebook.rounds()] == pytest.approx(moves, abs=1e-5)
    for name, rows, labels in (("ann", ann_rows, []), ("bob", bob_rows, FOUND)):
        found = PrivateStore.of(tmp_path / "private", name).load("unsupervised", Private, start.layout)
        assert np.abs(found.class_embeddings.numpy() - rows).max() < 1e-5
        assert found.labels.tolist() == labels
