"""What every algorithm promises, one suite for all of them."""

import dataclasses
import functools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from personae.algorithms import ALGORITHMS
from personae.core import wire
from personae.core.algorithm import Algorithm, AnyAlgorithm, ClientInfo, Reply
from personae.core.holdings import ClientFaces
from personae.core.message import Broadcast, LocalState, Message, Record, ServerState
from personae.core.payload import ClassEmbeddings
from personae.errors import ConfigError
from personae.parts.clustering import CFinch
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.inprocess import SameProcess, WorkerProcesses
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Answer, Failure, Transport
from toys import NAMES, Crowd, Dropping, Rehearsal, Relay, Reversed, quickly, random_faces, stage_of

every = pytest.mark.parametrize("name", ALGORITHMS)
federated = pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.federated])


def rehearse(folder: Path, name: str, rounds: int = 2) -> Rehearsal:
    stage = stage_of(quickly(ALGORITHMS[name]()), rounds=rounds, evaluate_every=1)
    return Rehearsal(folder, (stage,), source=NAMES[0])


def content(record: Record) -> bytes:
    return wire.to_bytes(wire.encode(record))


def records(run: Rehearsal) -> tuple[Any, ...]:
    """Everything that a run leaves behind, but for the clock."""
    books = run.notebook.books
    models = {
        stage: {name: entry.tolist() for name, entry in model.items()} for stage, model in run.notebook.models.items()
    }
    return run.files(), books["metrics"], books["ledger"], models


# ------------------------------------------------------------------------------------------------ hyper-parameters


@every
def test_it_is_a_frozen_dataclass_of_hyper_parameters_that_all_have_defaults(name: str):
    kind = ALGORITHMS[name]
    algorithm = kind()
    assert kind.name == name
    assert dataclasses.is_dataclass(kind)
    for option in dataclasses.fields(kind):
        assert option.kw_only, option.name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(algorithm, option.name, getattr(algorithm, option.name))
    assert kind() == algorithm
    assert hash(kind()) == hash(algorithm)


@every
def test_it_pickles(name: str):
    algorithm = quickly(ALGORITHMS[name]())
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm


@every
def test_it_declares_its_four_types(name: str):
    types = ALGORITHMS[name].types
    assert issubclass(types.state, ServerState)
    assert issubclass(types.down, Broadcast)
    assert issubclass(types.private, LocalState)
    assert issubclass(types.up, Message)
    for message in (types.down, types.up):
        assert all(kind.meaning and kind.short for kind in message.kinds().values())


# ----------------------------------------------------------------------------------------------------- forgetting


@federated
def test_it_forgets_what_a_client_has_sent_and_nothing_else(name: str, tmp_path: Path):
    run = rehearse(tmp_path, name, rounds=1).run()
    algorithm, state = run.recipe[0].algorithm, run.checkpoints.finished(name)
    for client in NAMES:
        after = algorithm.forget(state, client)
        for each in dataclasses.fields(state):
            was, now = getattr(state, each.name), getattr(after, each.name)
            if each.name in state.by_client():
                assert now == {other: sent for other, sent in was.items() if other != client}
            else:
                assert now is was
    forgotten = functools.reduce(algorithm.forget, NAMES, state)
    assert all(not getattr(forgotten, field) for field in forgotten.by_client())
    assert torch.equal(forgotten.model.flat, state.model.flat)
    for number, client in enumerate(NAMES):  # and training goes on as with clients that were never heard of
        assert type(algorithm.send(forgotten, ClientInfo(client, number))) is algorithm.types.down


@pytest.mark.parametrize("name", ["fedgc", "fedface", "fedavg", "hf_maml_global"])
def test_templates_of_a_client_are_forgotten(name: str, tmp_path: Path):
    run = rehearse(tmp_path, name, rounds=1).run()
    state: Any = run.checkpoints.finished(name)
    assert "ann" in state.class_embeddings
    assert set(run.recipe[0].algorithm.forget(state, "ann").class_embeddings) == state.class_embeddings.keys() - {"ann"}


# ------------------------------------------------------------------------------------------------- watching it work


@dataclass
class Watch:
    """Notes every record that goes in and out of the hooks, and whether a hook wrote to what it was given."""

    given: list[tuple[str, str]] = field(default_factory=list)  # hook and type of what was written to
    ups: list[Message] = field(default_factory=list)
    downs: list[Message] = field(default_factory=list)
    begun: list[LocalState | None] = field(default_factory=list)  # private state before, and
    kept: list[LocalState] = field(default_factory=list)  # after a client's work
    states: list[ServerState] = field(default_factory=list)

    def around(self, hook: str, work: Any, *records: Record | None) -> Any:
        before = [(record, content(record)) for record in records if record is not None]
        result = work()
        self.given += [(hook, type(record).__qualname__) for record, was in before if content(record) != was]
        return result


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, name: str) -> Watch:
    seen, kind = Watch(), ALGORITHMS[name]
    start, send, local, merge, personal = kind.start, kind.send, kind.local, kind.merge, kind.personal

    def watched_start(self, previous, server):
        state = seen.around("start", lambda: start(self, previous, server), previous)
        seen.states.append(state)
        return state

    def watched_send(self, state, client):
        down = seen.around("send", lambda: send(self, state, client), state)
        seen.downs.append(down)
        return down

    def watched_local(self, down, private, client):
        up, kept = seen.around("local", lambda: local(self, down, private, client), down, private)
        seen.begun.append(private)
        seen.ups.append(up)
        seen.kept.append(kept)
        return up, kept

    def watched_merge(self, state, replies, server):
        taken: list[tuple[Message, bytes]] = []

        def noting() -> Iterator[Reply[Any]]:
            for reply in replies:
                taken.append((reply.up, content(reply.up)))
                yield reply

        merged = seen.around("merge", lambda: merge(self, state, noting(), server), state)
        seen.given += [("merge", type(up).__qualname__) for up, was in taken if content(up) != was]
        seen.states.append(merged)
        return merged

    def watched_personal(self, down, private, client):
        return seen.around("personal", lambda: personal(self, down, private, client), down, private)

    hooks = [("start", watched_start), ("send", watched_send), ("local", watched_local), ("merge", watched_merge)]
    if kind.personal is not Algorithm.personal:
        hooks.append(("personal", watched_personal))
    for hook, replacement in hooks:
        monkeypatch.setattr(kind, hook, functools.wraps(getattr(kind, hook))(replacement))
    return seen


@every
def test_it_writes_to_nothing_that_it_is_given(tmp_path: Path, name: str, watch: Watch):
    """Not to hyper-parameters, the initial model, the server's state, what was sent, replies or private state."""
    run = rehearse(tmp_path, name, rounds=3)
    algorithm = run.recipe[0].algorithm
    options, initial = pickle.dumps(algorithm), run.federation.backbone().state()
    engine = dataclasses.replace(run.engine(), initial=initial)
    was = initial.flat.clone()
    engine.run()
    assert watch.given == []
    suspicions = [event for event in run.notebook.books["metrics"] if event["event"] == "suspicion"]
    besides = [event for event in suspicions if event["left_out"] or event["drawn_back"]]  # what would have been
    assert len(watch.states) == 4 + len(besides)
    assert pickle.dumps(algorithm) == options
    assert torch.equal(initial.flat, was)


@every
def test_everything_it_says_and_keeps_survives_bytes(tmp_path: Path, name: str, watch: Watch):
    run = rehearse(tmp_path, name).run()
    layout, kind = run.federation.backbone().layout, ALGORITHMS[name]
    assert {type(record) for record in watch.states} == {kind.types.state}
    assert {type(record) for record in watch.downs} == {kind.types.down}
    assert {type(record) for record in watch.ups} == ({kind.types.up} if kind.federated else set())
    assert {type(record) for record in watch.kept} == ({kind.types.private} if kind.federated else set())
    for record in (*watch.states, *watch.downs, *watch.ups, *watch.kept):
        again = wire.decode(type(record), wire.from_bytes(content(record)), layout)
        assert content(again) == content(record)


@every
def test_what_leaves_is_exactly_what_is_declared(tmp_path: Path, name: str, watch: Watch):
    run, kind = rehearse(tmp_path, name).run(), ALGORITHMS[name]
    for up in watch.ups:
        packet = wire.encode(up)
        assert {entry.partition("/")[0] for entry in (*packet.arrays, *packet.scalars)} <= set(kind.types.up.hints())
        assert all(getattr(up, field) is None for field in kind().withheld)
    asked = {client for event in run.notebook.rounds() for client in event["participants"]}
    assert asked == (set(NAMES) if kind.federated else set())
    crossed = {entry["payload"] for entry in run.notebook.books["ledger"] if entry["direction"] == "up"}
    declared = set(kind.types.up.payloads().values()) | {"Scalars"}  # an evaluation is made of figures
    assert crossed <= declared
    if kind.federated:
        assert crossed == {payload for up in watch.ups for payload in wire.payload_bytes(up)} | {"Scalars"}


@every
def test_it_says_whether_it_needs_public_faces(tmp_path: Path, name: str):
    algorithm = quickly(ALGORITHMS[name]())
    settings = [algorithm]
    if "use_public_faces" in ALGORITHMS[name].__dataclass_fields__ and name != "pretrain":
        settings = [dataclasses.replace(algorithm, use_public_faces=public) for public in (False, True)]
        assert [each.needs_public for each in settings] == [False, True]
    for number, each in enumerate(settings):
        stage = stage_of(each)
        run = Rehearsal(tmp_path / f"{number}", (stage,), source=NAMES[0], public=None)
        if each.needs_public:
            with pytest.raises(ConfigError, match="public faces"):
                run.run()
        else:
            run.run()
            assert run.notebook.rounds()[0]["failed"] == {}


# ---------------------------------------------------------------------------------------------------- runs as a whole


class Cut(BaseException):
    """The process ends here."""


@every
@pytest.mark.parametrize("round_", [1, 2])
@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_a_run_cut_off_and_resumed_equals_one_in_one_go(
    tmp_path: Path, name: str, round_: int, when: str, monkeypatch: pytest.MonkeyPatch
):
    whole = rehearse(tmp_path / "whole", name, rounds=3).run()
    cut = rehearse(tmp_path / "cut", name, rounds=3)
    save, keep = Checkpoints.save, PrivateStore.save

    def failing_save(self, stage, number, *rest):
        if (number, when) == (round_, "before"):
            raise Cut
        save(self, stage, number, *rest)
        if (number, when) == (round_, "after"):
            raise Cut

    def failing_keep(self, stage, number, state, **options):
        keep(self, stage, number, state, **options)
        if (number, when, self.root.name) == (round_, "within", "bob"):
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", failing_save)
        patch.setattr(PrivateStore, "save", failing_keep)
        if when == "within" and not ALGORITHMS[name].federated:
            cut.run()  # there are no clients to be cut off among
        else:
            with pytest.raises(Cut):
                cut.run()
    again = rehearse(tmp_path / "cut", name, rounds=3)
    again.notebook = cut.notebook
    again.run()
    assert records(again) == records(whole)


@every
def test_the_order_in_which_clients_answer_changes_nothing(tmp_path: Path, name: str):
    one, other = rehearse(tmp_path / "one", name), rehearse(tmp_path / "other", name)
    one.run()
    other.run(Reversed(SameProcess(other.federation)))
    assert records(other) == records(one)


@every
def test_two_runs_are_alike_and_another_seed_is_not(tmp_path: Path, name: str):
    one, same, other = (rehearse(tmp_path / folder, name) for folder in ("one", "same", "other"))
    other.seed = 6
    assert records(one.run()) == records(same.run())
    assert not torch.equal(one.final(), other.run().final())


@every
def test_a_client_that_is_lost_is_tolerated(tmp_path: Path, name: str):
    run = rehearse(tmp_path, name)
    run.run(Dropping(SameProcess(run.federation), "bob"))
    if ALGORITHMS[name].federated:
        assert [list(event["failed"]) for event in run.notebook.rounds()] == [["bob"], ["bob"]]
    assert run.final().isfinite().all()
    for event in run.notebook.books["metrics"]:
        if event["event"] == "personal":
            assert list(event["clients"]) == ["ann", "eve", "zoe"]


@pytest.fixture(scope="module")
def one_and_two_workers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rehearsal, Rehearsal]:
    """All algorithms one after the other, in one process and in two."""
    recipe = tuple(stage_of(quickly(kind()), evaluate_every=1) for kind in ALGORITHMS.values())
    one, two = (Rehearsal(tmp_path_factory.mktemp(name), recipe, source=NAMES[0]) for name in ("one", "two"))
    transport = WorkerProcesses(two.federation, 2)
    try:
        two.run(transport)
    finally:
        transport.close()
    return one.run(), two


@every
def test_one_worker_equals_two(one_and_two_workers: tuple[Rehearsal, Rehearsal], name: str):
    one, two = one_and_two_workers
    assert torch.equal(one.final(name), two.final(name))
    for book in ("metrics", "ledger"):
        mine, theirs = ([e for e in run.notebook.books[book] if e["stage"] == name] for run in (one, two))
        assert mine == theirs
        assert mine
    kept = [{path: data for path, data in run.files().items() if f"/{name}/" in path} for run in (one, two)]
    assert kept[0] == kept[1]
    assert bool(kept[0]) == ALGORITHMS[name].federated


# --------------------------------------------------------------------------------------------------------- sentinels


def tensors(record: Record | None) -> list[Tensor]:
    arrays = wire.encode(record).arrays.values() if record is not None else ()
    return [array for array in arrays if array.is_floating_point() and array.numel()]


def unsent(kept: LocalState, name: str) -> list[Tensor]:
    """What a client keeps, but for copies of what it sends: a field of a payload kind that its messages have, too."""
    leaving = set(ALGORITHMS[name].types.up.payloads().values())
    sent = {field for field, kind in kept.hints().items() if getattr(kind, "__name__", "") in leaving}
    arrays = wire.encode(kept).arrays.items()
    return [array for entry, array in arrays if entry.partition("/")[0] not in sent and array.is_floating_point()]


def windows(vector: Tensor, width: int) -> Tensor:
    return torch.nn.functional.normalize(vector.detach().flatten().double().unfold(0, width, 1), dim=1)


def found_in(message: Message, secrets: Tensor) -> bool:
    """Whether a row is in a message: its very numbers in any order, or, up to length, a run of numbers like it.

    Figures are numbers, too: a row could leave as eight of them.
    """
    scalars = wire.encode(message).scalars.values()
    figures = torch.tensor([float(value) for value in scalars if value is not None])  # None: a field that is not there
    arrays = [array for array in (*tensors(message), figures) if array.numel() >= secrets.shape[1]]
    if not arrays:
        return False
    numbers = torch.cat([array.flatten() for array in arrays])
    directions = torch.nn.functional.normalize(secrets.double(), dim=1)
    alike = max(float((windows(array, secrets.shape[1]) @ directions.T).abs().max()) for array in arrays)
    return bool(torch.isin(secrets, numbers).all(1).any()) or alike > 0.999


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in ALGORITHMS.items()
        if kind.federated and "ClassEmbeddings" not in kind.types.up.payloads().values()
    ],
)
def test_rows_planted_in_private_state_are_found_in_nothing_that_leaves(tmp_path: Path, name: str, watch: Watch):
    """Neither number for number nor, up to length, in any run of numbers, over two rounds through bytes."""
    rehearse(tmp_path / "first", name, rounds=1).run()
    run, planted = rehearse(tmp_path / "second", name), []
    layout = run.federation.backbone().layout
    for index, client in enumerate(NAMES):
        kept = PrivateStore.of(tmp_path / "first" / "private", client).load(
            name, ALGORITHMS[name].types.private, layout
        )
        packet, source = wire.encode(kept), torch.Generator().manual_seed(index)
        for entry, array in packet.arrays.items():
            if array.is_floating_point():
                # positive, so that whatever it is (a variance, say) it remains possible
                packet.arrays[entry] = torch.randn(array.shape, generator=source).abs() + 0.01
                planted += list(packet.arrays[entry].flatten().split(8))
        sentinel = wire.decode(type(kept), packet, layout)
        PrivateStore.of(tmp_path / "second" / "private", client).save(name, 0, sentinel)  # before the first round
    for noted in (watch.ups, watch.begun, watch.kept):
        noted.clear()
    run.run()
    assert None not in watch.begun  # the sentinels were where they should be
    assert len(watch.ups) == 2 * len(NAMES)
    secrets = [row for row in planted if len(row) == 8]
    secrets += [
        row for kept in watch.kept for array in unsent(kept, name) for row in array.flatten().split(8) if len(row) == 8
    ]
    if not secrets:
        assert not any(tensors(kept) for kept in watch.kept)  # nothing is kept that could leave as numbers
        return
    for up in watch.ups:
        arrived = wire.decode(type(up), wire.from_bytes(content(up)), layout)
        assert not found_in(arrived, torch.stack(secrets))


def test_features_and_pseudo_labels_of_targets_are_found_in_nothing_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Clustering, then two federated rounds that cluster anew, all that is sent through bytes."""
    features: list[Tensor] = []

    def noting(clustering: Any, given: Tensor, generator: torch.Generator) -> Tensor:
        features.append(given.clone())
        return divide(clustering, given, generator)

    divide = CFinch.divide
    monkeypatch.setattr(CFinch, "divide", noting)
    algorithms = (ALGORITHMS["cluster"](evaluated=True), quickly(ALGORITHMS["unsupervised"](recluster_every=1)))
    run = Rehearsal(tmp_path, tuple(stage_of(each) for each in algorithms), source=NAMES[0])
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    assert len(features) == 3 * 3  # three targets: in both rounds of clustering, and anew in the last one
    layout, ups = run.federation.backbone().layout, [each for each in transport.answers if isinstance(each, Answer)]
    found = [
        PrivateStore.of(tmp_path / "private", client).load(each.name, each.types.private, layout).labels
        for client in NAMES[1:]
        for each in algorithms
    ]
    assert all(len(labels) > 5 for labels in found)
    for answer in ups:
        arrived = content(answer.message)
        for labels in found:
            for kind in (torch.int64, torch.int32, torch.float32, torch.uint8):
                assert labels.to(kind).numpy().tobytes() not in arrived
        if any(array.numel() >= 8 for array in tensors(answer.message)):
            assert not found_in(answer.message, torch.cat(features).float())
    sent = {name for answer in ups for name in wire.encode(answer.message).arrays if "model/" not in name}
    assert sent == set()  # but for the model, numbers by name are all that leaves


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in ALGORITHMS.items()
        if all("ClassEmbeddings" in way.payloads().values() for way in (kind.types.up, kind.types.down))
        and not kind.shows_others
    ],
)
def test_a_client_receives_its_own_rows_and_nobody_elses(tmp_path: Path, name: str):
    """Sentinel rows planted with every client, over three rounds: all that the others send or get is in no `Down`."""
    rehearse(tmp_path / "first", name, rounds=1).run()
    run = rehearse(tmp_path / "second", name, rounds=3)
    layout = run.federation.backbone().layout
    held: dict[str, list[Tensor]] = {client: [] for client in NAMES}
    for index, client in enumerate(NAMES):
        kept = PrivateStore.of(tmp_path / "first" / "private", client).load(
            name, ALGORITHMS[name].types.private, layout
        )
        source = torch.Generator().manual_seed(index)
        sentinel = dataclasses.replace(
            kept, class_embeddings=torch.randn(kept.class_embeddings.shape, generator=source)
        )
        PrivateStore.of(tmp_path / "second" / "private", client).save(name, 0, sentinel)
        held[client].append(sentinel.class_embeddings)
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    for answer in transport.answers:
        if isinstance(answer, Answer) and isinstance(answer.message, ALGORITHMS[name].types.up):
            held[answer.client.name].append(answer.message.class_embeddings.vectors)
    for request in transport.requests:
        if request.down.class_embeddings is not None:
            held[request.client.name].append(request.down.class_embeddings.vectors)
    assert all(len(rows) >= 1 + 3 + 2 for rows in held.values())  # planted, sent, received
    for request in transport.requests:
        others = torch.cat([rows for client in NAMES if client != request.client.name for rows in held[client]])
        arrived = wire.decode(type(request.down), wire.from_bytes(content(request.down)), layout)
        assert not found_in(arrived, others)
        if request.round > 1:
            assert found_in(arrived, torch.cat(held[request.client.name]))


class Listening(Relay):
    """Notes the answers, too."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.answers: list[Answer | Failure] = []

    def tamper(self, answers: Sequence[Answer | Failure]) -> Sequence[Answer | Failure]:
        self.answers += answers
        return answers


def test_the_search_for_sentinels_finds_what_is_there():
    """A row scaled and in the middle of something else, or as it is with its numbers in disorder."""

    @dataclass(frozen=True, kw_only=True)
    class Leak(Message):
        class_embeddings: ClassEmbeddings

    secrets = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(10, 10, generator=torch.Generator().manual_seed(1))
    scaled, disordered = noise.clone(), noise.clone()
    scaled.view(-1)[53:61] = -3 * secrets[2]
    disordered.view(-1)[4:84:10] = secrets[4].flip(0)
    assert not found_in(Leak(class_embeddings=ClassEmbeddings(noise)), secrets)
    assert found_in(Leak(class_embeddings=ClassEmbeddings(scaled)), secrets)
    assert found_in(Leak(class_embeddings=ClassEmbeddings(disordered)), secrets)


def test_every_algorithm_is_listed_under_its_own_name():
    listed: list[type[AnyAlgorithm]] = list(ALGORITHMS.values())
    assert len({kind.name for kind in listed}) == len(listed)
    assert all(ALGORITHMS[kind.name] is kind for kind in listed)


# ------------------------------------------------------------------------------------------------ honest clients


@dataclass(frozen=True)
class Full(Crowd):
    """Clients that train on a dozen images of all their people, who are others for each `group`."""

    group: int = 0

    def of(self, client: str) -> ClientFaces:
        index = self.clients.index(client)
        faces = random_faces(1000 * self.group + index, 2 + index, 12)
        return dataclasses.replace(super().of(client), train=faces)


def calmly(algorithm: Any) -> Any:
    """Steps over a few images of noise would have any length and any direction, and statistics any value."""
    calm = {"training": {"batch_size": 16}, "meta": {"batch_size": 8, "lr": 0.01}}
    budgets = {
        name: dataclasses.replace(getattr(algorithm, name), **options)
        for name, options in calm.items()
        if hasattr(algorithm, name)
    }
    return dataclasses.replace(algorithm, **budgets)


@federated
@pytest.mark.parametrize("group", range(3))
def test_nobody_among_honest_clients_is_refused_or_left_out(name: str, group: int, tmp_path: Path):
    """With the defences that are on by default, and enough clients for all of them to be at work."""
    crowd = Full(tuple(f"client-{index}" for index in range(10)), group=group)
    stage = stage_of(calmly(quickly(ALGORITHMS[name]())), rounds=4)
    run = Rehearsal(tmp_path, (stage,), holdings=crowd, source=crowd.clients[0]).run()
    assert [event["rejected"] for event in run.notebook.rounds()] == [{}] * 4
    assert not any(event.get("left_out") for event in run.notebook.books["metrics"])
