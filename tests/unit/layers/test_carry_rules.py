"""What clients carry from round to round: what is kept, what leaves, and runs that are cut off."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from byhand import LinearPlan, Pair
from personae.algorithms import ALGORITHMS, HFMAML, Adapt, Central, Cluster, FedFR, FedGC, FedPE, Unsupervised
from personae.core import wire
from personae.core.algorithm import AnyAlgorithm, ClientInfo, Session
from personae.core.embedder import embed
from personae.core.message import Broadcast
from personae.core.payload import Expectation, Gradient, ModelWithoutBatchNorm, ModelWithoutStatistics
from personae.core.server_step import ServerStep
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.layers.carry import Carry, Kept
from personae.parts.local_sgd import LocalSGD
from personae.privacy.disclosure import message_bytes, sends, withheld
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.firewall import Firewall, measured
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess, WorkerProcesses
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Answer, Request
from personae.selection import Share
from toys import NAMES, TRAINING, Crowd, Dropping, Rehearsal, Relay, Reversed, quickly, stage_of

EVERYTHING = Carry(momentum="server", control_variates=True, batch_norm="all")
CARRIES = {
    "kept": Carry(momentum="client", control_variates=True, batch_norm="statistics"),
    "sent": Carry(momentum="server", batch_norm="all", batch_norm_sent=True),
    "everything": EVERYTHING,
}
TRAINED = [  # every algorithm whose clients train with LocalSGD and send a model
    name
    for name, kind in ALGORITHMS.items()
    if kind.federated and isinstance(getattr(kind(), "training", None), LocalSGD) and "model" in kind.types.up.hints()
]


def rehearse(folder: Path, algorithm: AnyAlgorithm, carry: Carry | None, rounds: int = 3, **options: Any) -> Rehearsal:
    algorithm = carry.around(quickly(algorithm)) if carry else quickly(algorithm)
    stage = stage_of(algorithm, rounds=rounds, evaluate_every=1, **options)
    return Rehearsal(folder, (stage,), source=NAMES[0])


def client_of(name: str) -> ClientInfo:
    return ClientInfo(name, NAMES.index(name))


def records(run: Rehearsal) -> tuple[Any, ...]:
    return run.files(), run.notebook.books["metrics"], run.notebook.books["ledger"]


def kept_by(run: Rehearsal, client: str, stage: int = -1) -> Any:
    place = run.recipe[stage]
    store, layout = PrivateStore.of(run.folder / "private", client), run.federation.backbone().layout
    return store.load(place.name, place.algorithm.types.private, layout)


class Listening(Relay):
    """Notes the answers, too."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.answers: list[Answer] = []

    def tamper(self, answers):
        self.answers += answers
        return answers

    def trained(self) -> list[tuple[Request, Any]]:
        asked = [request for request in self.requests if request.task == "train"]
        up = [answer.message for answer in self.answers if "metrics" not in answer.message.hints()]
        return list(zip(asked, up, strict=True))


def listened(run: Rehearsal) -> Listening:
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    return transport


# ------------------------------------------------------------------------------------------------------ with everything


def test_these_are_the_algorithms_that_it_is_for():
    assert TRAINED == ["fedpe", "fedavg", "q_fedavg", "fedgc", "oracle", "fedface", "fedfr", "unsupervised"]


@pytest.mark.parametrize(
    ("name", "when", "carry"),
    [
        *((name, "within", EVERYTHING) for name in TRAINED),
        *(("fedgc", when, carry) for when in ("before", "after") for carry in CARRIES.values()),
    ],
)
def test_a_run_cut_off_and_resumed_equals_one_in_one_go(
    tmp_path: Path, name: str, when: str, carry: Carry, monkeypatch: pytest.MonkeyPatch
):
    class Cut(BaseException):
        pass

    save, keep = Checkpoints.save, PrivateStore.save

    def failing_save(self, stage, number, *rest):
        if (number, when) == (2, "before"):
            raise Cut
        save(self, stage, number, *rest)
        if (number, when) == (2, "after"):
            raise Cut

    def failing_keep(self, stage, number, state, **options):
        keep(self, stage, number, state, **options)
        if (number, when, self.root.name) == (2, "within", "bob"):
            raise Cut

    def start(folder: str) -> Rehearsal:
        return rehearse(tmp_path / folder, ALGORITHMS[name](), carry, server=ServerStep(kind="momentum", lr=0.5))

    whole, cut = start("whole").run(), start("cut")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", failing_save)
        patch.setattr(PrivateStore, "save", failing_keep)
        with pytest.raises(Cut):
            cut.run()
    again = start("cut")
    again.notebook = cut.notebook
    assert records(again.run()) == records(whole)


@pytest.mark.parametrize("name", TRAINED)
def test_order_and_lost_clients(tmp_path: Path, name: str):
    one, other, lost = (rehearse(tmp_path / folder, ALGORITHMS[name](), EVERYTHING) for folder in ("one", "two", "3"))
    other.run(Reversed(SameProcess(other.federation)))
    assert records(one.run()) == records(other)
    lost.run(Dropping(SameProcess(lost.federation), "bob"))
    assert lost.final().isfinite().all()
    assert not torch.equal(lost.final(), one.final())


def test_one_worker_equals_two(tmp_path: Path):
    stages = tuple(
        stage_of(carry.around(quickly(ALGORITHMS[name]())), name=f"{name}-{label}", evaluate_every=1, rounds=2)
        for name in ("fedgc", "fedfr")
        for label, carry in CARRIES.items()
    )
    one, two = (Rehearsal(tmp_path / folder, stages, source=NAMES[0]) for folder in ("one", "two"))
    transport = WorkerProcesses(two.federation, 2)
    try:
        two.run(transport)
    finally:
        transport.close()
    assert records(one.run()) == records(two)


@pytest.mark.parametrize(
    ("name", "carry"),
    [*((name, EVERYTHING) for name in TRAINED), *(("fedgc", carry) for carry in CARRIES.values())],
)
def test_messages_are_what_is_declared_and_survive_bytes(tmp_path: Path, name: str, carry: Carry):
    run = rehearse(tmp_path, ALGORITHMS[name](), carry, rounds=2)
    algorithm, layout = run.recipe[0].algorithm, run.federation.backbone().layout
    plain = quickly(ALGORITHMS[name]())
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert algorithm.name == name
    assert algorithm.withheld >= plain.withheld
    for request, up in listened(run).trained():
        assert type(up) is algorithm.types.up
        for message in (request.down, up):
            content = wire.to_bytes(wire.encode(message))
            again = wire.decode(type(message), wire.from_bytes(content), layout)
            assert wire.to_bytes(wire.encode(again)) == content
        assert all(getattr(up, field) is None for field in algorithm.withheld)
        filled = {field for field, value in vars(up).items() if value is not None}
        assert filled == set(algorithm.types.up.hints()) - algorithm.withheld
        width, public = run.federation.network.embedding, run.public.classes
        people = run.holdings.of(request.client.name).train.classes
        expected = Expectation(layout=layout, width=width, classes=people, public_classes=public)
        forecast = message_bytes(type(up), expected, withheld(algorithm))
        figures = 8 * (len(up.training.values) - 1)
        assert forecast + figures == sum(wire.payload_bytes(up).values())
    crossed = {entry["payload"] for entry in run.notebook.books["ledger"] if entry["direction"] == "up"}
    assert crossed == {*sends(algorithm), "Scalars"}
    gradients = carry.control_variates or carry.momentum == "server"
    assert ("Gradient" in crossed) == gradients


@pytest.mark.parametrize("carry", CARRIES.values(), ids=CARRIES)
def test_what_a_client_keeps_is_found_in_nothing_that_leaves(tmp_path: Path, carry: Carry):
    """Neither what was planted there nor what is kept after, but for BatchNorm that a client is told to send."""
    rehearse(tmp_path / "first", FedPE(), carry, rounds=1).run()
    run = rehearse(tmp_path / "second", FedPE(), carry, rounds=2)
    kind, layout = run.recipe[0].algorithm.types.private, run.federation.backbone().layout
    secrets = []
    for index, client in enumerate(NAMES):
        kept = PrivateStore.of(tmp_path / "first" / "private", client).load("fedpe", kind, layout)
        packet, source = wire.encode(kept), torch.Generator().manual_seed(index)
        for entry, array in packet.arrays.items():
            packet.arrays[entry] = torch.rand(array.shape, generator=source) * 0.01 + 0.5
            secrets.append(packet.arrays[entry].flatten())
        PrivateStore.of(tmp_path / "second" / "private", client).save("fedpe", 0, wire.decode(kind, packet, layout))
    ups = [up for _, up in listened(run).trained()]
    for client in NAMES:
        kept = kept_by(run, client)
        secrets += [array.flatten() for array in (kept.class_embeddings, *kept.directions.values())]
        if not carry.batch_norm_sent:
            secrets += [array.flatten() for array in kept.batch_norm.values()]
    secret = torch.cat(secrets).unique()
    secret = secret[(secret.abs() > 1e-4) & (secret != 1.0)]  # numbers that could be there by chance are no secrets
    assert len(secret) > 500
    for up in ups:
        for entry, array in wire.encode(up).arrays.items():
            found = torch.isin(array.flatten(), secret)
            assert found.double().mean() < 0.01, entry


def test_what_is_kept_by_the_client_alone_changes_nothing_that_crosses(tmp_path: Path):
    run = rehearse(tmp_path, FedPE(), Carry(momentum="client"))
    algorithm = run.recipe[0].algorithm
    assert algorithm.types.up is FedPE.types.up
    assert algorithm.types.down is FedPE.types.down
    assert not algorithm.personalizes
    run.run()
    plain = rehearse(tmp_path / "plain", FedPE(), None).run()
    assert run.notebook.books["ledger"] == plain.notebook.books["ledger"]
    assert not torch.equal(run.final(), plain.final())


def test_a_client_that_was_away_goes_on_with_what_it_had(tmp_path: Path):
    """Half of the clients in each round: whoever is not asked keeps its state from the last time it was."""
    run = rehearse(
        tmp_path, FedPE(), Carry(momentum="client", control_variates=True), rounds=4, selection=Share(share=0.5)
    )
    transport = listened(run)
    layout = run.federation.backbone().layout
    variates = {name: torch.zeros(layout.trainable_size) for name in NAMES}
    shared, waiting = torch.zeros(layout.trainable_size), {}
    for request, up in transport.trained():
        if request.round in waiting:
            waiting[request.round].append(up.control_variate.flat)
        else:
            for changes in waiting.values():
                shared = shared + sum(changes) / len(NAMES)
            waiting = {request.round: [up.control_variate.flat]}
            if request.round > 1:
                assert torch.allclose(request.down.control_variate.flat, shared, atol=1e-6)
        variates[request.client.name] = variates[request.client.name] + up.control_variate.flat
    for name, expected in variates.items():
        asked = any(request.client.name == name for request, _ in transport.trained())
        kept = kept_by(run, name)
        assert (kept is None) != asked
        if asked:
            assert torch.allclose(kept.directions["control variate"], expected, atol=1e-5)


def test_rows_that_begin_anew_begin_at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Momentum of clusters that are no more must not move new ones."""
    seen: list[tuple[str, int, Any]] = []
    train = LocalSGD.train

    def noting(self, client, others, samples, loss, **options):
        seen.append((client.info.name, client.round, client.carried.head_momentum))
        return train(self, client, others, samples, loss, **options)

    monkeypatch.setattr(LocalSGD, "train", noting)
    algorithm = Unsupervised(recluster_every=2, strength=0.0)
    rehearse(tmp_path, algorithm, Carry(momentum="client"), rounds=3).run()
    for name, round_, head_momentum in seen:
        begins = round_ == 1 or (round_ == 3 and name != NAMES[0])
        assert (head_momentum is None) == begins, (name, round_)


def test_momentum_of_another_number_of_rows_is_left_behind(tmp_path: Path):
    """A client that has come to hold another person keeps the momentum of its backbone alone."""
    run = rehearse(tmp_path, FedPE(), None)
    request = Request("train", "fedpe", 1, client_of("bob"), Broadcast(model=run.federation.backbone().state()))

    def trained(velocity: Tensor, head_momentum: Tensor | None) -> tuple[Tensor, Tensor]:
        client = ClientHost(run.federation)._client(request, run.recipe[0], Session())
        client.carried.velocity, client.carried.head_momentum = velocity, head_momentum
        up, kept = run.recipe[0].algorithm.local(request.down, None, client)
        return up.model.flat, kept.class_embeddings

    moving = torch.full((run.federation.backbone().layout.trainable_size,), 0.01)
    fresh = trained(moving, None)
    assert all(map(torch.equal, trained(moving, torch.ones(2 * 8)), fresh))  # bob holds three people
    assert not torch.equal(trained(moving, torch.ones(3 * 8))[1], fresh[1])
    assert not torch.equal(trained(torch.zeros_like(moving), None)[0], fresh[0])


# ------------------------------------------------------------------------------------------------------------ BatchNorm


@pytest.mark.parametrize(
    ("which", "kind", "missing"),
    [
        ("statistics", ModelWithoutStatistics, {f"{n}.running_{w}" for n in (1, 5) for w in ("mean", "var")}),
        (
            "all",
            ModelWithoutBatchNorm,
            {f"{n}.{w}" for n in (1, 5) for w in ("running_mean", "running_var", "weight", "bias")},
        ),
    ],
)
def test_what_stays_with_a_client_is_not_in_what_it_sends(tmp_path: Path, which, kind, missing):
    run = rehearse(tmp_path, FedPE(), Carry(batch_norm=which))
    initial, layout = run.federation.backbone().state(), run.federation.backbone().layout
    for _, up in listened(run).trained():
        sent = {name.removeprefix("model/") for name in wire.encode(up).arrays}
        assert sent == set(layout.names) - missing
        assert type(up.model) is kind
    final = layout.views(run.final())
    for name, view in layout.views(initial.flat).items():
        assert torch.equal(final[name], view) == (name in missing), name  # the global model's stay as they were
    for client in NAMES:
        norms = kept_by(run, client).batch_norm
        assert set(norms) == missing
        assert not any(torch.equal(norms[name], final[name]) for name in missing)
    assert sends(run.recipe[0].algorithm) == sorted(["Count", "Scalars", kind.__name__])


@pytest.mark.parametrize("sent", [False, True])
def test_a_client_trains_and_is_evaluated_with_its_own(tmp_path: Path, sent: bool):
    run = rehearse(tmp_path, FedPE(), Carry(batch_norm="all", batch_norm_sent=sent), rounds=2)
    transport = listened(run)
    layout = run.federation.backbone().layout
    last = {request.client.name: (request, up) for request, up in transport.trained() if request.round == 2}
    host, inner = ClientHost(run.federation), run.recipe[0].algorithm.inner
    assert run.recipe[0].algorithm.personalizes  # so that the engine asks for it
    assert not inner.personalizes
    for name, (request, up) in last.items():
        store = PrivateStore.of(tmp_path / "private", name)
        before = store.load("fedpe", run.recipe[0].algorithm.types.private, layout, before=2)
        own = request.down.model
        for entry, value in before.batch_norm.items():
            layout.views(own.flat)[entry].copy_(value)
        again, _ = inner.local(
            replace(request.down, model=own), before, host._client(request, run.recipe[0], Session())
        )
        names = up.model.layout.names
        assert (len(names) < len(layout.names)) != sent
        mine, theirs = layout.views(again.model.flat), up.model.layout.views(up.model.flat)
        assert all(torch.equal(mine[entry], theirs[entry]) for entry in names)
        after = kept_by(run, name).batch_norm
        assert all(torch.equal(mine[entry], after[entry]) for entry in after)
        # the model that it uses is the global one with its own BatchNorm
        end = run.checkpoints.finished("fedpe").model
        for entry, value in after.items():
            layout.views(end.flat)[entry].copy_(value)
        client = host._client(replace(request, task="evaluate"), run.recipe[0], Session())
        down = run.recipe[0].algorithm.send(run.checkpoints.finished("fedpe"), request.client)
        found = embed(run.recipe[0].algorithm.personal(down, kept_by(run, name), client), client.test)
        host.backbone.load(end)
        assert torch.equal(found, embed(client.embedder(host.backbone), client.test))
        host.backbone.load(run.checkpoints.finished("fedpe").model)
        assert not torch.allclose(found, embed(client.embedder(host.backbone), client.test), atol=1e-3)


def test_statistics_of_its_own_leave_the_weights_as_they_would_be(tmp_path: Path):
    """In training BatchNorm normalises by the batch, so that it does not matter whose running means these are."""
    own = rehearse(tmp_path / "own", FedPE(), Carry(batch_norm="statistics")).run()
    shared = rehearse(tmp_path / "shared", FedPE(), None).run()
    sent = rehearse(tmp_path / "sent", FedPE(), Carry(batch_norm="statistics", batch_norm_sent=True)).run()
    weights = slice(own.federation.backbone().layout.trainable_size)
    assert torch.equal(own.final()[weights], shared.final()[weights])
    assert not torch.equal(own.final(), shared.final())
    assert torch.equal(sent.final()[weights], shared.final()[weights])
    assert not torch.equal(sent.final(), own.final())


def test_averages_that_are_sent_are_for_newcomers(tmp_path: Path):
    run = rehearse(tmp_path, FedPE(), Carry(batch_norm="all", batch_norm_sent=True), rounds=2)
    run.holdings = Crowd(newcomers=frozenset({"zoe"}))
    run.run()
    layout, final = run.federation.backbone().layout, run.final()
    sizes = {name: len(run.holdings.of(name).train) for name in NAMES[:3]}
    for entry in sorted(layout.batch_norm):
        mean = sum(size * kept_by(run, name).batch_norm[entry] for name, size in sizes.items()) / sum(sizes.values())
        assert torch.allclose(layout.views(final)[entry], mean, atol=1e-6)
    figures = [event for event in run.notebook.books["metrics"] if event["event"] == "personal"][-1]["clients"]
    assert figures["zoe"]["personal/rank1"] == figures["zoe"]["global/rank1"]


def test_a_later_stage_begins_with_a_clients_own(tmp_path: Path):
    carry = Carry(batch_norm="all")
    stages = [stage_of(carry.around(quickly(FedPE())), name=name, rounds=1) for name in ("first", "second")]
    run = Rehearsal(tmp_path, tuple(stages))
    seen: dict[str, dict[str, Tensor]] = {}
    local = FedPE.local

    def noting(self, down, private, client):
        views = down.model.layout.views(down.model.flat)
        seen[client.info.name] = {name: views[name].clone() for name in down.model.layout.batch_norm}
        return local(self, down, private, client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedPE, "local", noting)
        run.run()
    for name in NAMES:
        first = kept_by(run, name, 0).batch_norm
        assert all(torch.equal(seen[name][entry], value) for entry, value in first.items())
        assert not torch.equal(first["1.weight"], kept_by(run, name, 1).batch_norm["1.weight"])


def test_public_faces_are_seen_through_a_clients_own(tmp_path: Path):
    """FedFR finds hard negatives under the model that the client has: other features for everybody, none shared."""
    run = rehearse(tmp_path, FedFR(), Carry(batch_norm="all"), rounds=2).run()
    assert not (tmp_path / "public").exists()
    host, stage = ClientHost(run.federation), run.recipe[0]
    state = run.checkpoints.finished("fedfr")
    request = Request("train", "fedfr", 3, client_of("bob"), stage.algorithm.send(state, None))
    private = kept_by(run, "bob")
    down, _, client = stage.algorithm.layer.own(request.down, private, host._client(request, stage, Session()))
    shared = host._client(request, stage, Session()).public_faces.features(down.model)
    assert torch.allclose(client.public_faces.features(down.model), shared, atol=1e-6)
    assert not torch.allclose(client.public_faces.features(state.model), shared, atol=1e-2)


# -------------------------------------------------------------------------------------------------------------- refusal


@pytest.mark.parametrize(
    ("algorithm", "carry", "words"),
    [
        (Central(), Carry(momentum="client"), "federated algorithms; central is none"),
        (HFMAML(), Carry(momentum="client"), "hf_maml has no local SGD"),
        (HFMAML(), Carry(control_variates=True), "hf_maml has no local SGD"),
        (FedPE(training=replace(TRAINING, momentum=0.0)), Carry(momentum="client"), "training.momentum is 0"),
        (Adapt(), Carry(control_variates=True), "clients of adapt send no whole model"),
        (Cluster(), Carry(batch_norm="all"), "clients of cluster send no whole model"),
    ],
)
def test_what_cannot_be_carried_is_refused(algorithm: AnyAlgorithm, carry: Carry, words: str):
    with pytest.raises(ValueError, match=words):
        carry.around(algorithm)


def test_batch_norm_goes_with_meta_learning(tmp_path: Path):
    run = rehearse(tmp_path, HFMAML(), Carry(batch_norm="all"), rounds=2).run()
    assert kept_by(run, "ann").batch_norm


def test_a_network_without_batch_norm_has_none_to_keep(tmp_path: Path):
    run = rehearse(tmp_path, FedPE(), Carry(batch_norm="statistics"))
    run.network, run.holdings, run.benchmarks, run.source = LinearPlan(), Pair(), (), None
    with pytest.raises(ConfigError, match="this network has none"):
        run.run()


def test_a_gradient_out_of_proportion_is_drawn_back(tmp_path: Path):
    run = rehearse(tmp_path, FedPE(), Carry(control_variates=True), rounds=1)
    (_, up), *_ = listened(run).trained()
    model, usual = run.federation.backbone().state(), measured(up, run.federation.backbone().state())
    assert usual["gradient"] == pytest.approx(float(up.control_variate.flat.norm()))
    long = replace(up, control_variate=Gradient(up.control_variate.layout, up.control_variate.flat * 11))
    measures = {"ann": usual, "bob": usual, "eve": measured(long, model)}
    assert Firewall().excess(measures, model) == {"eve": {"gradient": pytest.approx((10 / 11) ** 2)}}
    shorter = long.control_variate.drawn_back(model, {"gradient": 2 / 11})
    torch.testing.assert_close(shorter.flat, up.control_variate.flat * 2)
    assert Firewall().excess({**measures, "eve": {**usual, "gradient": usual["gradient"] * 9}}, model) == {}


def test_a_model_without_other_entries_than_declared_is_refused(tmp_path: Path):
    run = rehearse(tmp_path, FedPE(), Carry(batch_norm="statistics"), rounds=1)
    backbone = run.federation.backbone()
    (_, up), *_ = listened(run).trained()
    assert Firewall().problem(up, backbone) is None
    part = backbone.layout.without(backbone.layout.batch_norm)
    less = replace(up, model=ModelWithoutStatistics(part, backbone.state().entries(part)))
    assert "4 entries are missing" in Firewall().problem(less, backbone)
    with pytest.raises(wire.WireError, match="model: 4 entries are missing"):
        wire.decode(type(up), wire.encode(less), backbone.layout)


def experiment(**stage: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"by": "equal", "clients": 2},
        "stages": [{"name": "a", "algorithm": {"name": "fedgc"}, **stage}],
    }


def carrying(**settings: Any) -> dict[str, Any]:
    return {"layers": [{"name": "carry", **settings}]}


def test_an_experiment_file_says_what_is_carried():
    found = parse_experiment(
        experiment(layers=[{"name": "carry", "momentum": "client", "control_variates": True}]), "x.toml"
    )
    algorithm = found.recipe[0].algorithm
    assert algorithm == Carry(momentum="client", control_variates=True).around(FedGC())
    section = found.resolved()["stages"][0]
    assert section["layers"][0]["control_variates"] is True
    assert section["algorithm"]["name"] == "fedgc"
    assert "layers" not in section["algorithm"]
    assert parse_experiment(experiment(), "x.toml").recipe[0].algorithm == FedGC()


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (carrying(momentom="client"), r"layers.carry.momentom: there is no such key; did you mean momentum"),
        (carrying(momentum="clients"), r"layers.carry.momentum: this should be 'none', 'client' or 'server'"),
        (carrying(batch_norm_sent=True), r"stages.a.layers.carry: batch_norm_sent goes with"),
        ({**carrying(momentum="client"), "algorithm": {"name": "hf_maml"}}, r"stages.a.layers: hf_maml has no local"),
        ({"algorithm": {"name": "fedpe", "training": {"milestones": [2.0]}}}, r"milestones are shares"),
        ({"algorithm": {"name": "fedpe", "training": {"decay": 0.0}}}, r"decay is 0.0, it must be in \(0, 1\]"),
        ({"algorithm": {"name": "fedpe", "training": {"span": "run"}}}, r"training.span"),
    ],
)
def test_mistakes_in_a_file_get_one_clear_line(stage, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_experiment(experiment(**stage), "x.toml")
    assert "\n" not in str(caught.value)


def test_kept_state_is_what_a_later_stage_can_ask_for():
    algorithm = EVERYTHING.around(FedPE())
    assert issubclass(algorithm.types.private, Kept)
    assert issubclass(algorithm.types.private, FedPE.types.private)
