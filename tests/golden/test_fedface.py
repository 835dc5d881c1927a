"""FedFace worked by hand: ann holds one person, bob three."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byhand import MARGIN, SCALE, LinearPlan, Pair, client, cosface, inputs, through_unit, training, unit
from personae.algorithms import FedFace
from personae.parts.margins import Margin
from toys import Faces, Rehearsal, stage_of

HINGE, SPREAD, STRENGTH, MOMENTUM = 0.95, 1.4, 0.2, 0.5
HOLDINGS = Pair(sizes=((1, 4), (3, 3)))


def positive(x: np.ndarray, labels: np.ndarray, theta: np.ndarray, rows: np.ndarray):
    """Eq. 7: loss, gradient in theta, gradient in the one row."""
    assert not labels.any()
    features = x @ theta.T
    excess = np.maximum(0, HINGE - unit(features) @ unit(rows)[0])
    slope = -2 * excess[:, None] / len(x)
    in_features = through_unit(features, slope * unit(rows))
    in_rows = through_unit(rows, (slope * unit(features)).sum(0, keepdims=True))
    return (excess**2).mean(), in_features.T @ x, in_rows


def spread_slope(rows: np.ndarray, reduction: str) -> np.ndarray:
    """The gradient of Eq. 9, pair by pair."""
    direction, slope = unit(rows), np.zeros_like(rows)
    for c, other in np.ndindex(len(rows), len(rows)):
        if c != other:
            excess = max(0.0, SPREAD - (1 - direction[c] @ direction[other]))
            slope[c] += 2 * excess * direction[other]
            slope[other] += 2 * excess * direction[c]
    return through_unit(rows, slope) / (1 if reduction == "sum" else len(rows) * (len(rows) - 1))


def worked(faces: Faces, theta: np.ndarray, rows: np.ndarray | None):
    end, rows, loss = client(faces, theta, rows, 2, positive if faces.classes == 1 else cosface)
    return end, unit(rows), loss


@pytest.mark.parametrize(("steps", "reduction"), [(1, "sum"), (3, "mean")])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, steps: int, reduction: str):
    algorithm = FedFace(
        hinge=HINGE,
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=training(2),
        strength=STRENGTH,
        spread=SPREAD,
        steps=steps,
        momentum=MOMENTUM,
        reduction=reduction,
    )
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=HOLDINGS, network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()

    ann = bob = None
    for round_ in range(2):
        theta_ann, ann, loss_ann = worked(HOLDINGS.of("ann").train, theta, ann)
        theta_bob, bob, loss_bob = worked(HOLDINGS.of("bob").train, theta, bob)
        assert run.notebook.rounds()[round_]["scalars"]["loss"] == pytest.approx((loss_ann + loss_bob) / 2, rel=1e-5)
        theta = 4 / 13 * theta_ann + 9 / 13 * theta_bob
        sent = rows = np.concatenate([ann, bob])
        speed = np.zeros_like(rows)
        for _ in range(steps):
            speed = MOMENTUM * speed + spread_slope(rows, reduction)
            rows = unit(rows - STRENGTH * speed)
        ann, bob = rows[:1], rows[1:]

    assert loss_ann > 1e-4  # the hinge is open
    # float32 against float64 over four steps.
    assert np.abs(start.layout.views(run.final())["1.weight"].numpy() - theta).max() < 1e-5
    state = run.checkpoints.finished("fedface")
    for name, expected in (("ann", ann), ("bob", bob)):
        assert np.abs(state.class_embeddings[name].vectors.numpy() - expected).max() < 1e-5
    assert np.abs(rows - sent).max() > 1e-2


def test_the_first_row_is_the_mean_direction_of_the_faces(tmp_path: Path):
    """Eq. 6: a rate of next to nothing leaves the row where it began."""
    algorithm = FedFace(training=replace(training(1), lr=1e-12, weight_decay=0.0), strength=1e-12)
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=1),), holdings=HOLDINGS, network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()
    features = unit(inputs(HOLDINGS.of("ann").train) @ theta.T)
    found = run.checkpoints.finished("fedface").class_embeddings["ann"].vectors.numpy()
    assert np.abs(found - unit(features.mean(0, keepdims=True))).max() < 1e-6
