"""FedFace beyond its golden case: its ablations, one identity a client, and BatchNorm."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import FedFace
from personae.algorithms.fedface import Private, State, Up
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.holdings import ClientFaces
from personae.core.payload import ClassEmbeddings, Count, Scalars
from personae.core.rng import generator
from personae.parts.corrections import spreadout
from personae.runtime.store import PrivateStore
from toys import NAMES, TRAINING, Crowd, Rehearsal, random_faces, stage_of


@dataclass(frozen=True)
class Owners(Crowd):
    """One person a client, each with another number of images; the first has one image alone."""

    def of(self, client: str) -> ClientFaces:
        index = self.clients.index(client)
        faces = random_faces(100 + index, 1, 1 + 3 * index)
        return ClientFaces(faces, faces, faces)


def rehearse(folder: Path, rounds: int = 2, **options: Any) -> Rehearsal:
    algorithm = FedFace(**{"training": TRAINING, **options})
    return Rehearsal(folder, (stage_of(algorithm, rounds=rounds),), holdings=Owners())


def kept_rows(run: Rehearsal) -> torch.Tensor:
    layout = run.federation.backbone().layout
    stores = [PrivateStore.of(run.folder / "private", name) for name in NAMES]
    return torch.cat([store.load("fedface", Private, layout).class_embeddings for store in stores])


def test_one_identity_a_client_and_even_one_image(tmp_path: Path):
    run = rehearse(tmp_path).run()
    assert [event["failed"] for event in run.notebook.rounds()] == [{}, {}]
    rows = torch.cat([each.vectors for each in run.checkpoints.finished("fedface").class_embeddings.values()])
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(kept_rows(run).norm(dim=1), torch.ones(4))


def test_statistics_of_batch_norm_stay_as_they_were_with_one_identity(tmp_path: Path):
    run = rehearse(tmp_path).run()
    start = run.federation.backbone()
    before, after = start.layout.views(start.flat), start.layout.views(run.final())
    for name in before:
        if "running" in name:
            # the mean of equal vectors is that vector
            assert torch.equal(before[name], after[name]), name
    assert not torch.equal(before["1.weight"], after["1.weight"])  # scale and shift are trained


@pytest.mark.parametrize(("holdings", "mode", "moves"), [(Crowd(), "auto", True), (Crowd(), "eval", False)])
def test_with_several_identities_batch_norm_trains_unless_it_is_told_not_to(
    tmp_path: Path, holdings: Crowd, mode: str, moves: bool
):
    run = replace(rehearse(tmp_path, batch_norm=mode), holdings=holdings).run()
    start = run.federation.backbone()
    before, after = start.layout.views(start.flat), start.layout.views(run.final())
    assert torch.equal(before["1.running_mean"], after["1.running_mean"]) != moves


def test_trained_batch_norm_needs_more_than_one_image(tmp_path: Path):
    run = rehearse(tmp_path, batch_norm="train").run()
    assert [list(event["failed"]) for event in run.notebook.rounds()] == [["ann"], ["ann"]]


def test_batch_norm_that_trains_removes_the_identity():
    """What the option is for: normalised by their own statistics, the batches of any two people have the same mean."""
    backbone = Rehearsal(Path(), ()).federation.backbone()
    means = {}
    for training in (True, False):
        backbone.module.train(training)
        batches = [random_faces(seed, 1, 8).pixels.permute(0, 3, 1, 2) / 127.5 - 1 for seed in (1, 2)]
        with torch.no_grad():
            means[training] = [backbone.module(batch).mean(0) for batch in batches]
    torch.testing.assert_close(*means[True], rtol=0, atol=1e-5)
    assert float(torch.dist(*means[False])) > 0.1


def test_spreadout_keeps_apart_what_positive_losses_draw_together(tmp_path: Path):
    """The trivial solution: without spreadout all rows may meet in one point, with it they may not."""
    strong = replace(TRAINING, lr=0.5, iterations=10)
    options = {"rounds": 5, "training": strong, "spread": 1.0}
    with_, without = (rehearse(tmp_path / str(strength), strength=strength, **options).run() for strength in (0.1, 0.0))
    after = torch.cat([each.vectors for each in with_.checkpoints.finished("fedface").class_embeddings.values()])
    assert float(spreadout(after, 1.0).value) < float(spreadout(kept_rows(without), 1.0).value)


def test_rows_of_absent_clients_stay_as_last_seen_and_push_all_the_same(backbone: Backbone):
    """One row turns away from the other, which is not there and does not move, by an angle that is known."""
    eve, zoe = F.normalize(torch.randn(2, 8, generator=torch.Generator().manual_seed(1))).split(1)
    zoe = F.normalize(eve + 0.3 * zoe)
    algorithm, model = FedFace(strength=0.05, spread=1.0), backbone.state()
    up = Up(model=model, class_embeddings=ClassEmbeddings(zoe), samples=Count(3), training=Scalars({}))
    server = Server(model, backbone, None, None, generator(0), 1, 1)
    state = State(model=model, class_embeddings={"eve": ClassEmbeddings(eve)})
    found = algorithm.merge(state, iter([Reply(ClientInfo("zoe", 3), up)]), server).class_embeddings
    assert torch.equal(found["eve"].vectors, eve)
    angle = math.acos(float(eve @ zoe.T))
    slope = 4 * math.cos(angle) * math.sin(angle)  # of cos^2, in the sum in both orders
    assert float(eve @ found["zoe"].vectors.T) == pytest.approx(math.cos(angle + math.atan(0.05 * slope)), abs=1e-6)


def test_without_spreadout_no_row_leaves(tmp_path: Path):
    run = rehearse(tmp_path, strength=0.0).run()
    assert run.checkpoints.finished("fedface").class_embeddings == {}
    assert not any(entry["payload"] == "ClassEmbeddings" for entry in run.notebook.books["ledger"])


def test_random_fixed_class_embeddings_stay_as_they_began(tmp_path: Path):
    run = rehearse(tmp_path, head_init="random", fixed=True, strength=0.0).run()
    drawn = [torch.randn(1, 8, generator=generator(run.seed, "fedface", 1, name, "train")) for name in NAMES]
    torch.testing.assert_close(kept_rows(run), F.normalize(torch.cat(drawn), dim=1))
    assert not torch.equal(run.final(), run.federation.backbone().flat)


def test_rows_begin_at_the_mean_or_at_random(tmp_path: Path):
    still = replace(TRAINING, lr=1e-12, weight_decay=0.0)
    mean, random = (
        kept_rows(rehearse(tmp_path / rows, rounds=1, training=still, head_init=rows).run())
        for rows in ("mean", "random")
    )
    assert float((mean * random).sum(1).max()) < 0.9


@pytest.mark.parametrize(
    "options",
    [
        {"hinge": 0.0},
        {"hinge": 1.5},
        {"spread": 0.0},
        {"strength": -1.0},
        {"steps": 0},
        {"momentum": 1.0},
        {"fixed": True},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"hinge|must|cannot"):
        FedFace(**options)
