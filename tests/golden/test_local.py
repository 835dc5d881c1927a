"""Local training worked by hand: two clients that never hear of each other."""

from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import MARGIN, SCALE, LinearPlan, Pair, client, training
from personae.algorithms import Local
from personae.parts.margins import Margin
from personae.runtime.store import PrivateStore
from toys import Rehearsal, stage_of


@pytest.mark.parametrize("steps", [1, 3])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, steps: int):
    algorithm = Local(margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN), training=training(steps))
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Pair(), network=LinearPlan(), benchmarks=())
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double().numpy()
    run.run()

    assert torch.equal(run.final(), start.flat)  # the server's model is nobody's
    losses = [[], []]
    for name in ("ann", "bob"):
        model, rows = theta, None
        for round_ in range(2):
            model, rows, loss = client(Pair().of(name).train, model, rows, steps)
            losses[round_].append(loss)
        kept = PrivateStore.of(tmp_path / "private", name).load("local", Local.types.private, start.layout)
        assert np.abs(start.layout.views(kept.model.flat)["1.weight"].numpy() - model).max() < 1e-5
        assert np.abs(kept.class_embeddings.numpy() - rows).max() < 1e-5
        assert np.abs(model - theta).max() > 1e-2
    found = [event["scalars"]["loss"] for event in run.notebook.rounds()]
    assert found == pytest.approx(np.mean(losses, axis=1), rel=1e-5)
    up = {(entry["payload"]) for entry in run.notebook.books["ledger"] if entry["direction"] == "up"}
    assert up == {"Scalars"}
