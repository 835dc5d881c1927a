"""Tuning: what each client does with the global model before it is evaluated."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import HFMAML, FedAvg, FedFace, FedFR, FedGC, FedPE, HFMAMLGlobal, Tune, fedavg
from personae.core.algorithm import Client, ClientInfo, Session
from personae.core.embedder import embed
from personae.core.payload import ModelState
from personae.core.rng import generator
from personae.errors import ConfigError
from personae.parts.batches import Batch
from personae.parts.embedding import class_features
from personae.parts.heads import OwnHead
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from personae.runtime.host import ClientHost
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Request
from toys import Crowd, Rehearsal, quickly, random_faces, stage_of

SGD = LocalSGD(lr=0.05, batch_size=4, iterations=3, augmentation=Augmentation(flip=False, shift=0, colour=0.0))
ROUNDS = {"rounds": 1}


def recipe(before=None, **options):
    stages = [stage_of(quickly(before or FedPE()), name="federate", **ROUNDS)]
    return (*stages, stage_of(Tune(training=SGD), name="tune", **{**ROUNDS, **options}))


def personal(run: Rehearsal, stage: str = "tune") -> dict[str, dict[str, float]]:
    events = [event for event in run.notebook.books["metrics"] if event["event"] == "personal"]
    return [event for event in events if event["stage"] == stage][-1]["clients"]


def test_the_global_model_stays_and_every_client_new_ones_too_is_evaluated_before_and_after(tmp_path: Path):
    run = Rehearsal(tmp_path, recipe(), holdings=Crowd(newcomers=frozenset({"zoe"}))).run()
    assert torch.equal(run.final("tune"), run.final("federate"))
    figures = personal(run)
    assert list(figures) == ["ann", "bob", "eve", "zoe"]
    assert all(set(each) == {"global/rank1", "personal/rank1"} for each in figures.values())
    before = personal(run, "federate")
    assert all(figures[name]["global/rank1"] == before[name]["global/rank1"] for name in figures)


def test_nothing_but_figures_leaves_and_nothing_is_kept(tmp_path: Path):
    run = Rehearsal(tmp_path, recipe()).run()
    sent = {entry["payload"] for entry in run.notebook.books["ledger"] if entry["stage"] == "tune"}
    assert sent == {"ModelState", "Scalars"}
    up = [e for e in run.notebook.books["ledger"] if e["stage"] == "tune" and e["direction"] == "up"]
    assert {entry["payload"] for entry in up} == {"Scalars"}
    assert not [path for path in run.files() if "/tune/" in path and path.startswith("private")]


def sent(model: ModelState) -> fedavg.Down:
    """What a client gets that begins with rows of its own."""
    return fedavg.Down(model=model, class_embeddings=None)


def client_of(run: Rehearsal, name: str, recalled: OwnHead | None) -> Client:
    holding, backbone = run.holdings.of(name), run.federation.backbone()
    return Client(
        info=None,
        train=holding.train,
        val=holding.val,
        test=holding.test,
        public_faces=None,
        backbone=backbone,
        generator=generator(1, name),
        round=1,
        rounds=1,
        recall=lambda kind: recalled if kind is OwnHead else None,
        embedder=run.federation.embedder,
    )


@pytest.mark.parametrize("recalled", [True, False])
def test_it_is_a_few_steps_of_sgd_from_the_rows_kept_or_from_class_means(tmp_path: Path, recalled: bool):
    run = Rehearsal(tmp_path, recipe())
    rows = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    client = client_of(run, "ann", OwnHead(class_embeddings=rows) if recalled else None)
    model = client.backbone.state()
    tune = Tune(training=SGD, margin=Margin(kind="cosface", scale=8.0, margin=0.1))
    was = rows.clone()
    found = embed(tune.personal(sent(model), None, client), client.test)

    again = client_of(run, "ann", None)
    module, ours = again.backbone.load(model), rows.clone()
    if not recalled:
        ours = class_features(again.backbone, again.train)

    def loss(batch: Batch) -> torch.Tensor:
        return tune.margin.loss(module(batch.images), ours, batch.labels)

    SGD.fit(again.backbone, [ours], again.train, loss, again.generator)
    assert torch.equal(found, embed(again.embedder(again.backbone), again.test))
    assert torch.equal(rows, was)
    again.backbone.load(model)
    assert not torch.allclose(found, embed(again.embedder(again.backbone), again.test), atol=1e-3)


def test_the_rows_of_a_new_client_begin_as_told(tmp_path: Path):
    run, found = Rehearsal(tmp_path, recipe()), []
    for rows in ("mean", "random"):
        client = client_of(run, "ann", None)
        down = sent(client.backbone.state())
        found.append(embed(Tune(training=SGD, head_init=rows).personal(down, None, client), client.test))
    assert not torch.allclose(*found, atol=1e-3)


def test_distilling_it_stays_nearer_to_the_global_model(tmp_path: Path):
    """Beside the margin loss, KL(softmax of the global model's logits || softmax of its own), over class means."""
    run = Rehearsal(tmp_path, recipe())
    client, again = client_of(run, "eve", None), client_of(run, "eve", None)
    model, margin = client.backbone.state(), Margin(kind="cosface", scale=8.0, margin=0.1)
    tune = Tune(training=SGD, margin=margin, method="distil", strength=2.0, temperature=1.5)
    found = embed(tune.personal(sent(model), None, client), client.test)

    teacher = copy.deepcopy(again.backbone.load(model)).eval()
    known = class_features(again.backbone, again.train)
    module, rows = again.backbone.load(model), known.clone()

    def shares(features, towards):
        return (8.0 * F.normalize(features) @ F.normalize(towards).T / 1.5).log_softmax(1)

    def loss(batch: Batch) -> torch.Tensor:
        features = module(batch.images)
        with torch.no_grad():
            wanted = shares(teacher(batch.images), known)
        agreement = (wanted.exp() * (wanted - shares(features, rows))).sum(1).mean() * 1.5**2
        return margin.loss(features, rows, batch.labels) + 2.0 * agreement

    SGD.fit(again.backbone, [rows], again.train, loss, again.generator)
    assert torch.allclose(found, embed(again.embedder(again.backbone), again.test), atol=2e-5)
    plain = replace(tune, method="fine-tune").personal(sent(model), None, client_of(run, "eve", None))
    assert not torch.allclose(found, embed(plain, client.test), atol=1e-3)


@pytest.mark.parametrize(
    ("identities", "batch_norm", "stay"), [(1, "auto", True), (2, "auto", False), (2, "eval", True)]
)
def test_statistics_stay_as_they_came_with_one_identity_and_with_any_where_that_is_asked_for(
    tmp_path: Path, identities: int, batch_norm, stay: bool
):
    run = Rehearsal(tmp_path, recipe())
    client = replace(client_of(run, "ann", None), train=random_faces(1, identities, 6))
    model = client.backbone.state()
    Tune(training=SGD, batch_norm=batch_norm).personal(sent(model), None, client)
    trained = client.backbone.state()
    weights = slice(model.layout.trainable_size)
    assert torch.equal(trained.flat[weights.stop :], model.flat[weights.stop :]) == stay
    assert not torch.equal(trained.flat[weights], model.flat[weights])


@pytest.mark.parametrize("before", [FedPE(), FedGC(regulariser="none"), FedFace(), FedFR(), HFMAML()])
def test_the_rows_of_any_earlier_algorithm_are_recalled_and_newcomers_have_none(tmp_path: Path, before):
    run = Rehearsal(tmp_path, recipe(before), holdings=Crowd(newcomers=frozenset({"zoe"})))
    seen: dict[str, OwnHead | None] = {}
    tune = run.recipe[-1].algorithm

    class Asking(Tune):
        def personal(self, down, private, client):
            seen[client.info.name] = client.recall(OwnHead)
            return super().personal(down, private, client)

    asking = Asking(**vars(tune))
    run.recipe = (run.recipe[0], replace(run.recipe[-1], algorithm=asking))
    run.run()
    assert seen["zoe"] is None
    for name in ("ann", "bob", "eve"):
        layout = run.federation.backbone().layout
        kept = PrivateStore.of(tmp_path / "private", name).load("federate", before.types.private, layout)
        assert torch.equal(seen[name].class_embeddings, kept.class_embeddings)


@pytest.mark.parametrize("before", [FedAvg(), HFMAMLGlobal()])
def test_after_a_global_layer_it_begins_with_the_averaged_rows_or_with_the_clients_own(tmp_path: Path, before):
    layers: list[fedavg.State] = []
    begun: dict[str, dict[str, torch.Tensor]] = {"own": {}, "averaged": {}}

    class Watched(type(before)):
        def merge(self, state, replies, server):
            layers.append(super().merge(state, replies, server))
            return layers[-1]

    class Noting(Tune):
        def adapted(self, client, rows, samples, theta, known):
            begun[self.head][client.info.name] = rows.clone()
            return super().adapted(client, rows, samples, theta, known)

    federate = stage_of(Watched(**vars(quickly(before))), name="federate", rounds=2)
    stages = [
        stage_of(Noting(training=SGD, head=head), name=head, after="federate", rounds=1) for head in ("own", "averaged")
    ]
    run = Rehearsal(tmp_path, (federate, *stages), holdings=Crowd(newcomers=frozenset({"zoe"}))).run()
    for name in ("ann", "bob", "eve"):
        kept = PrivateStore.of(tmp_path / "private", name)
        own = kept.load("federate", before.types.private, run.federation.backbone().layout).class_embeddings
        assert torch.equal(begun["own"][name], own)
        assert torch.equal(begun["averaged"][name], layers[-1].class_embeddings[name].vectors)
        assert not torch.equal(begun["own"][name], begun["averaged"][name])
    assert torch.equal(begun["own"]["zoe"], begun["averaged"]["zoe"])  # of a newcomer nobody has any
    crossed = {
        head: {entry["payload"] for entry in run.notebook.books["ledger"] if entry["stage"] == head} for head in begun
    }
    assert crossed == {"own": {"ModelState", "Scalars"}, "averaged": {"ModelState", "ClassEmbeddings", "Scalars"}}


def test_averaged_rows_need_a_stage_with_a_global_layer(tmp_path: Path):
    stages = (
        stage_of(quickly(FedPE()), name="federate", **ROUNDS),
        stage_of(Tune(training=SGD, head="averaged"), name="tune", **ROUNDS),
    )
    with pytest.raises(ConfigError, match=r"needs a global classification layer.*put fedavg or hf_maml_global there"):
        Rehearsal(tmp_path, stages).run()


def test_the_latest_stage_that_keeps_rows_is_the_one_recalled(tmp_path: Path):
    stages = (
        stage_of(quickly(FedPE()), name="older", **ROUNDS),
        stage_of(quickly(FedGC()), name="newer", **ROUNDS),
        stage_of(Tune(training=SGD), name="tune", **ROUNDS),
    )
    run = Rehearsal(tmp_path, stages).run()
    host = ClientHost(run.federation)
    request = Request("evaluate", "tune", 1, ClientInfo("bob", 1), sent(run.federation.backbone().state()))
    client = host._client(request, run.recipe[-1], Session())
    store, layout = PrivateStore.of(tmp_path / "private", "bob"), host.backbone.layout
    kept = store.load("newer", FedGC.types.private, layout)
    assert torch.equal(client.recall(OwnHead).class_embeddings, kept.class_embeddings)
    assert type(client.recall(OwnHead)) is FedGC.types.private
    older = store.load("older", FedPE.types.private, layout)
    assert torch.equal(client.recall(FedPE.types.private).class_embeddings, older.class_embeddings)
    assert client.recall(HFMAML.types.private) is not None  # HF-MAML keeps what FedPE keeps


def test_another_round_tunes_with_other_batches(tmp_path: Path):
    seen = []

    class Noting(Tune):
        def personal(self, down, private, client):
            embedder = super().personal(down, private, client)
            seen.append(client.backbone.flat.clone())
            return embedder

    stages = (stage_of(Noting(training=SGD), name="tune", rounds=2, evaluate_every=1),)
    Rehearsal(tmp_path, stages).run()
    first, second = seen[4:8], seen[8:12]  # after the evaluation before the first round
    assert len(seen) == 12
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))
