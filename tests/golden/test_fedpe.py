"""FedPE worked by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import MARGIN, SCALE, LinearPlan, Pair, client, training
from personae.algorithms import FedPE
from personae.algorithms.fedpe import State, Up
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.payload import Count, ModelState, Scalars
from personae.core.rng import generator
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from personae.runtime.store import PrivateStore
from toys import Rehearsal, TinyPlan, stage_of


@pytest.mark.parametrize("head", ["kept", "renewed"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("steps", [1, 3])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, head: str, weighting: str, steps: int):
    algorithm = FedPE(
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=training(steps),
        weighting=weighting,
        head_init="mean",
        head=head,
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
            begun = rows[name] if head == "kept" else None
            ends[name], rows[name], loss = client(Pair().of(name).train, theta, begun, steps)
            losses.append(loss)
        theta = sum(weights[name] * ends[name] for name in ends)
        assert run.notebook.rounds()[round_]["scalars"]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)

    # float32 against float64 over at most six steps.
    found = start.layout.views(run.final())["1.weight"].numpy()
    assert np.abs(found - theta).max() < 1e-5
    assert np.abs(theta - start.layout.views(start.flat)["1.weight"].numpy()).max() > 1e-2
    for name, expected in rows.items():
        kept = PrivateStore.of(tmp_path / "private", name).load("fedpe", FedPE.types.private, start.layout)
        assert np.abs(kept.class_embeddings.numpy() - expected).max() < 1e-5


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
