"""The same run in one process and through Flower's messages, with a grid that needs no network."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from fake import FakeGrid, as_a_server, grid_of  # noqa: F401 - the fixture
from personae.algorithms import ALGORITHMS, FedPE
from personae.core import wire
from personae.core.algorithm import ClientInfo
from personae.core.payload import ModelState
from personae.errors import QuorumLost
from personae.layers import Carry
from personae.runtime import flower, frames
from personae.runtime.coding import CODINGS
from personae.runtime.flower import GridTransport
from personae.runtime.inprocess import SameProcess
from personae.runtime.transport import Answer, Failure, Request
from toys import NAMES, TRAINING, Dropping, Rehearsal, TinyPlan, Troubled, quickly, stage_of


@pytest.fixture
def grids(tmp_path: Path) -> Any:
    return lambda run, *options, **named: grid_of(run, tmp_path / "home", *options, **named)


def records(run: Rehearsal) -> tuple[Any, ...]:
    books = run.notebook.books
    return run.files(), books["metrics"], books["ledger"]


def rehearse(folder: Path, name: str) -> Rehearsal:
    stage = stage_of(quickly(ALGORITHMS[name]()), evaluate_every=1)
    return Rehearsal(folder, (stage,), source=NAMES[0])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_ends_in_the_same_bits(name: str, tmp_path: Path, grids: Any) -> None:
    here, there = rehearse(tmp_path / "here", name).run(), rehearse(tmp_path / "there", name)
    grid = grids(there)
    there.run(over(there, grid))
    assert records(there) == records(here)
    assert not there.notices or all("as" in notice for notice in there.notices)


@pytest.mark.parametrize(
    "carry",
    [Carry(control_variates=True), Carry(momentum="client"), Carry(momentum="server"), Carry(batch_norm="all")],
    ids=str,
)
def test_what_clients_carry_travels_or_stays_as_in_one_process(carry: Carry, tmp_path: Path, grids: Any) -> None:
    recipe = (stage_of(carry.around(quickly(FedPE())), evaluate_every=1),)
    here, there = Rehearsal(tmp_path / "here", recipe).run(), Rehearsal(tmp_path / "there", recipe)
    there.run(over(there, grids(there)))
    assert records(there) == records(here)


# ------------------------------------------------------------------------------------------------ what can go wrong


def troubled(folder: Path, *trouble: tuple[str, str], quorum: float = 0.25, **options: Any) -> Rehearsal:
    stage = stage_of(Troubled(training=TRAINING, trouble=trouble, **options), quorum=quorum)
    return Rehearsal(folder, (stage,))


def model(run: Rehearsal) -> ModelState:
    return run.federation.backbone().state()


def over(run: Rehearsal, grid: FakeGrid, **options: Any) -> GridTransport:
    return GridTransport(run.federation, grid, grid.post, **{"deadline": 60, "poll": 0.01, **options})


def test_bad_clients_fail_as_they_do_in_one_process(tmp_path: Path, grids: Any) -> None:
    """Exceptions, values that are not finite, messages that cannot be written, and far too long updates."""
    trouble = (("ann", "raises"), ("bob", "nan"), ("eve", "short model"))
    here, there = (troubled(tmp_path / name, *trouble) for name in ("here", "there"))
    here.run()
    there.run(over(there, grids(there)))
    assert records(there) == records(here)
    (event, _) = there.notebook.rounds()
    assert sorted(event["failed"]) == ["ann", "eve"]
    assert event["rejected"] == {"bob": "ModelState holds values that are not finite"}


class Tampering(FakeGrid):
    """One client answers with other bytes than its desk gave it."""

    def __init__(self, inner: FakeGrid, name: str, spoil: Callable[[bytes], bytes]) -> None:
        super().__init__(inner.post, inner.desk, inner.job)
        self.name, self.spoil = name, spoil

    def reply(self, client: str, told: bytes, frame: bytes) -> bytes:
        content = super().reply(client, told, frame)
        return self.spoil(content) if client == self.name else content


def reshaped(content: bytes) -> bytes:
    """The same answer with one array of another shape."""
    end = 4 + int.from_bytes(content[:4], "little")
    packet = wire.from_bytes(content[end:])
    if "model/0.weight" in packet.arrays:  # figures have none
        packet.arrays["model/0.weight"] = packet.arrays["model/0.weight"].flatten()
    return content[:end] + wire.to_bytes(packet)


def headed(header: object) -> bytes:
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + wire.to_bytes(wire.Packet({}, {}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (reshaped, "its answer is not what was declared, in model"),
        (lambda content: content[:-5], "its answer cannot be read"),
        (lambda content: b"", "its answer cannot be read"),
        (lambda content: b"\xff" * 100, "its answer cannot be read"),
        (lambda content: b"[" * 100_000, "its answer cannot be read"),
        (lambda content: content + bytes(1 << 20), "its answer holds "),
        (lambda content: headed([1]), "its answer is not what was declared"),
        (lambda content: headed({}), "its answer is not what was declared, in model"),
        (lambda content: headed({"trouble": True}), "its answer is not what was declared, in failure"),
        (lambda content: headed({"trouble": "everything"}), "its answer is not what was declared"),
        (lambda content: headed({"trouble": True, "more": 1}), "its answer is not what was declared"),
    ],
)
def test_what_cannot_be_an_answer_fails_its_client_alone(
    spoil: Callable[[bytes], bytes], reason: str, tmp_path: Path, grids: Any
) -> None:
    run = troubled(tmp_path / "run")
    grid = Tampering(grids(run), "bob", spoil)
    run.run(over(run, grid, max_bytes=1 << 20))
    for event in run.notebook.rounds():
        assert list(event["failed"]) == ["bob"]
        assert event["failed"]["bob"].startswith(reason)
        assert f"{event['stage']}, round {event['round']}: bob failed: {event['failed']['bob']}" in run.notices
    lost = troubled(tmp_path / "lost")
    lost.run(Dropping(SameProcess(lost.federation), "bob"))
    assert torch.equal(run.final(), lost.final())


def padded(head: bytes) -> bytes:
    """It says the same at great length."""
    return head + b" " * frames.LONGEST_HEADER


def long_header(content: bytes) -> bytes:
    end = 4 + int.from_bytes(content[:4], "little")
    head = padded(content[4:end])
    return len(head).to_bytes(4, "little") + head + content[end:]


def long_names(content: bytes) -> bytes:
    begin = 4 + int.from_bytes(content[:4], "little")
    end = begin + 8 + int.from_bytes(content[begin : begin + 8], "little")
    names = padded(content[begin + 8 : end])
    return content[:begin] + len(names).to_bytes(8, "little") + names + content[end:]


@pytest.mark.parametrize("lengthened", [long_header, long_names])
def test_json_that_is_too_long_is_not_parsed_and_fails_its_client(
    lengthened: Callable[[bytes], bytes], tmp_path: Path, grids: Any
) -> None:
    """Nothing else is wrong with it, so that whoever parsed it would take it."""
    run = troubled(tmp_path / "run")
    grid = Tampering(grids(run), "bob", lengthened)
    run.run(over(run, grid))
    assert [event["failed"] for event in run.notebook.rounds()] == [{"bob": "its answer cannot be read"}] * 2


def test_a_client_does_not_send_what_the_server_does_not_take(tmp_path: Path, grids: Any) -> None:
    run = troubled(tmp_path / "run")
    with pytest.raises(QuorumLost, match=r"its answer is larger than the server takes; the details are in that client"):
        run.run(over(run, grids(run, max_bytes=1000)))


def test_who_is_silent_is_left_behind_at_the_deadline_and_heard_again_later(tmp_path: Path, grids: Any) -> None:
    run = troubled(tmp_path / "run")
    grid = grids(run)
    grid.mute = {"eve"}
    began = time.monotonic()
    requests = [
        Request("train", run.recipe[0].name, 1, ClientInfo(name, index), FedPE.types.down(model=model(run)))
        for index, name in enumerate(NAMES)
    ]
    transport = over(run, grid, deadline=3)
    answers = {answer.client.name: answer for answer in transport.exchange(requests)}
    assert 3 <= time.monotonic() - began < 15
    assert answers["eve"] == Failure(ClientInfo("eve", 2), "it did not answer within 3 seconds")
    assert all(turn.wait <= 3 for turn in grid.sent.values())  # the gate holds none for longer
    assert {name for name, answer in answers.items() if isinstance(answer, Answer)} == {"ann", "bob", "zoe"}
    # Nobody asks for it any more.
    pulls = grid.pulls
    time.sleep(0.2)
    assert grid.pulls == pulls
    # Its late answer to the first request is never taken for one to the second.
    grid.mute = set()
    (late,) = grid.asked
    (answer,) = transport.exchange([replace(requests[2], round=2)])
    assert isinstance(answer, Answer)
    assert late not in grid.asked


def bodies(grid: FakeGrid) -> list[int]:
    """In each turn."""
    return [len({each.body for each in turn.asked}) for turn in grid.sent.values()]


def test_what_is_alike_is_sent_once_and_what_is_large_in_several_turns(
    tmp_path: Path, grids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = troubled(tmp_path / "run")
    grid = grids(run)
    one = [
        Request("train", run.recipe[0].name, 1, ClientInfo(name, index), FedPE.types.down(model=model(run)))
        for index, name in enumerate(NAMES)
    ]
    alike = [replace(each, down=one[0].down) for each in one]
    assert len([*over(run, grid).exchange(alike)]) == len(NAMES)
    assert bodies(grid) == [1]
    grid.sent.clear()
    monkeypatch.setattr(flower, "TOGETHER", 1)
    assert {answer.client.name for answer in over(run, grid).exchange(one)} == {*NAMES}
    assert bodies(grid) == [1] * len(NAMES)


def test_who_is_not_connected_fails_at_once_and_is_waited_for_at_the_beginning(tmp_path: Path, grids: Any) -> None:
    run = troubled(tmp_path / "run")
    grid = grids(run)
    grid.connected.remove("zoe")
    transport = over(run, grid)
    assert transport.gather(NAMES, 0.1) == ["zoe"]
    run.run(transport)
    assert [event["failed"] for event in run.notebook.rounds()] == [{"zoe": "it is not connected"}] * 2
    threading.Timer(0.2, lambda: grid.connected.add("zoe")).start()
    assert transport.gather(NAMES, 30) == []


def test_a_superlink_that_refuses_or_is_gone_is_nobodys_failure(
    tmp_path: Path, grids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(message_ids: object) -> list[Message]:
        raise ConnectionError("the SuperLink is gone")

    run = troubled(tmp_path / "run")
    asked = Message(RecordDict(), 1, "query")
    asked.metadata.__dict__["_message_id"] = "asked"
    error = Message(Error(code=3, reason="no node"), reply_to=asked)
    for name, broken, words in (
        ("push_messages", lambda messages: [None] * len(messages), "the SuperLink took no message for the gate"),
        ("get_nodes", list, "the gate is not connected to the SuperLink"),
        ("pull_messages", gone, "the SuperLink is gone"),
        ("pull_messages", lambda _: [error], "the gate does not answer"),
    ):
        grid = grids(run)
        monkeypatch.setattr(grid, name, broken)
        with pytest.raises(ConnectionError, match=words):
            run.run(over(run, grid))


@pytest.mark.parametrize("lack", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=repr)
def test_memory_that_is_not_enough_is_that_clients_failure(
    lack: Exception, tmp_path: Path, grids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = frames.to_answer

    def to_answer(content: bytes, request: Request, *rest: Any) -> Any:
        if request.client.name == "bob":
            raise lack
        return decoded(content, request, *rest)

    monkeypatch.setattr(frames, "to_answer", to_answer)
    run = troubled(tmp_path / "run")
    run.run(over(run, grids(run)))
    reason = "its answer takes more memory than there is"
    assert [event["failed"] for event in run.notebook.rounds()] == [{"bob": reason}] * 2


def test_a_job_that_makes_no_sense_is_refused_by_the_desk_and_the_desk_goes_on(tmp_path: Path, grids: Any) -> None:
    run = troubled(tmp_path / "run")
    grid = grids(run)
    good = grid.job
    for bad in (
        "",
        "[]",
        "{}",
        '{"run": "../../etc", "experiment": {}}',
        '{"run": "x", "experiment": {}, "coding": "z"}',
    ):
        grid.job = bad
        with pytest.raises(QuorumLost, match="it cannot carry out this experiment"):
            run.run(over(run, grid))
    grid.job = good
    run.run(over(run, grid))


# ------------------------------------------------------------------------------------------------- what travels how


@pytest.mark.parametrize("coding", CODINGS)
def test_bytes_in_the_ledger_are_those_that_crossed(coding: str, tmp_path: Path, grids: Any) -> None:
    run = Rehearsal(tmp_path / "run", (stage_of(quickly(FedPE())),), network=TinyPlan(embedding=512))
    grid = grids(run, coding)
    replace(run.engine(over(run, grid, coding=CODINGS[coding])), coding=CODINGS[coding]).run()
    for direction, crossed in grid.crossed.items():
        told = sum(entry["bytes"] for entry in run.notebook.books["ledger"] if entry["direction"] == direction)
        messages = 4 * 4  # two rounds, and evaluations before and after them
        assert 0 <= crossed - told <= 1600 * messages, direction
    halves = {"exact": (4, 4), "fp16": (2, 2), "bf16": (2, 2), "delta-fp16": (4, 2), "delta-bf16": (4, 2)}
    if coding not in halves:  # of 8 bits, with their scales: test_coding
        return
    size = run.federation.backbone().layout.size
    trained = [entry for entry in run.notebook.books["ledger"] if entry["round"] == 1]
    first = {entry["direction"]: entry["bytes"] for entry in trained[:2]}
    assert (first["down"], first["up"]) == tuple(width * size for width in halves[coding])


@pytest.mark.parametrize("coding", ["fp16", "delta-fp16", "delta-bf16", "delta-int8"])
def test_a_rounded_round_ends_near_the_exact_one(coding: str, tmp_path: Path, grids: Any) -> None:
    """How near depends on the training; that rounding itself keeps to its bound is shown in test_coding."""
    here, there = (Rehearsal(tmp_path / name, (stage_of(quickly(FedPE()), rounds=1),)) for name in ("here", "there"))
    here.run()
    there.run(over(there, grids(there, coding), coding=CODINGS[coding]))
    start = here.federation.backbone().state().flat
    moved, apart = torch.dist(here.final(), start), torch.dist(here.final(), there.final())
    assert 0 < apart / moved < 0.05
