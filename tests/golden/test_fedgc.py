"""FedGC worked by hand: FedPE's two clients, and the correction of the server class by class."""

from pathlib import Path

import numpy as np
import pytest

from byhand import LR, MARGIN, SCALE, LinearPlan, Pair, client, through_unit, training, unit
from personae.algorithms import FedGC
from personae.parts.margins import Margin
from personae.runtime.store import PrivateStore
from toys import Rehearsal, stage_of

OWNERS = np.array([0, 0, 1, 1, 1])  # ann has two people, bob three


def softmax_slope(rows: np.ndarray) -> np.ndarray:
    """The gradient of Eq. 5 in the form of CosFace; a margin at the class itself, w' held fixed."""
    direction, slope = unit(rows), np.zeros_like(rows)
    for a in range(len(rows)):
        others = OWNERS[a] != OWNERS
        own = np.exp(SCALE * (1 - MARGIN))
        pull = np.exp(SCALE * (direction[others] @ direction[a]))
        slope[others] += SCALE * np.outer(pull / (own + pull.sum()), direction[a])
    return through_unit(rows, slope)


def cosine_slope(rows: np.ndarray) -> np.ndarray:
    direction = unit(rows)
    return through_unit(rows, np.stack([direction[owner != OWNERS].sum(0) for owner in OWNERS]))


@pytest.mark.parametrize(
    ("regulariser", "reduction", "lr", "steps"),
    [
        ("softmax", "sum", None, 1),
        ("softmax", "mean", 0.5, 1),
        ("cosine", "mean", None, 1),
        ("softmax", "sum", None, 3),
    ],
)
def test_two_clients_and_two_rounds_by_hand(
    tmp_path: Path, regulariser: str, reduction: str, lr: float | None, steps: int
):
    algorithm = FedGC(
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=training(2),
        regulariser=regulariser,
        reduction=reduction,
        strength=0.7,
        lr=lr,
        steps=steps,
    )
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Pair(), network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()

    slope_of = softmax_slope if regulariser == "softmax" else cosine_slope
    terms = {"sum": 1, "mean": 5 if regulariser == "softmax" else 12}[reduction]  # classes, or ordered pairs
    ann = bob = None
    for _ in range(2):
        theta_ann, ann, _ = client(Pair().of("ann").train, theta, ann, 2)
        theta_bob, bob, _ = client(Pair().of("bob").train, theta, bob, 2)
        theta = 4 / 13 * theta_ann + 9 / 13 * theta_bob
        sent = np.concatenate([ann, bob])
        rows = sent
        for _ in range(steps):
            rows = rows - 0.7 * (lr or LR) * slope_of(rows) / terms
        ann, bob = rows[:2], rows[2:]

    # float32 against float64 over four steps.
    assert np.abs(start.layout.views(run.final())["1.weight"].numpy() - theta).max() < 1e-5
    state = run.checkpoints.finished("fedgc")
    assert list(state.class_embeddings) == ["ann", "bob"]
    for name, expected in (("ann", ann), ("bob", bob)):
        assert np.abs(state.class_embeddings[name].vectors.numpy() - expected).max() < 1e-5
    assert np.abs(rows - sent).max() > 1e-3  # the correction is no trifle
    kept = PrivateStore.of(tmp_path / "private", "bob").load("fedgc", FedGC.types.private, start.layout)
    assert np.abs(kept.class_embeddings.numpy() - sent[2:]).max() < 1e-5
