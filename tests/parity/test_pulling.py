"""Pieces that a hostile client pushes, pulled by Flower's own grid from a SuperLink that is none."""

import json
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from fake import FakeGrid, as_a_server  # noqa: F401 - the fixture
from personae.runtime import flower, frames, pulling
from personae.runtime.flower import GridTransport, asked_in, wrapped
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess
from toys import NAMES, TRAINING, Dropping, Rehearsal, Troubled, stage_of

Contents = dict[str, bytes]  # the pieces of an answer; one that is empty was announced, and is not there
LARGEST = 1 << 20


class Pieces(FakeGrid):
    """Clients of this process, whose answers come in pieces by way of Flower's code; some of them are forged."""

    def __init__(self, run: Rehearsal, forge: dict[str, Callable[[Contents], Contents]]) -> None:
        super().__init__(None)
        self.host, self.forge = ClientHost(run.federation), forge

    def reply(self, message: Message) -> Message:
        request = frames.to_request(asked_in(message.content)[1], self.host.federation, self.host.backbone.layout)
        return Message(wrapped(self.host.answer(request, frames.EXACT)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        (number,) = message_ids
        with self.lock:
            node = self.sent[number].metadata.dst_node_id
            reply = self.reply(self.sent.pop(number))
        contents = {each: thing.deflate() for each, thing in get_all_nested_objects(reply).items()}
        name = next(name for name, own in self.nodes.items() if own == node)
        root = reply.object_id
        contents = self.forge.get(name, lambda honest: honest)(contents)
        reply.metadata.__dict__["_message_id"] = root
        tree = ObjectTree(object_id=root, children=[ObjectTree(object_id=each) for each in contents if each != root])
        return list(Link(reply, tree, contents).pull_messages([number]))


class Link(HttpGrid):
    """Flower's grid, with one answer at the other end."""

    def __init__(self, reply: Message, tree: ObjectTree, contents: Contents) -> None:
        super().__init__(token="none")
        self._run = SimpleNamespace(run_id=1)
        described = PullAppMessagesResponse(messages_list=[message_to_proto(reply)], message_object_trees=[tree])
        self.link = SimpleNamespace(
            PullMessages=lambda _: described,
            PullObject=lambda asked: PullObjectResponse(
                object_found=True,
                object_available=bool(contents[asked.object_id]),
                object_content=contents[asked.object_id],
            ),
            ConfirmMessageReceived=lambda _: None,
        )

    @property
    def _runtime_client(self) -> Any:
        return self.link


def of_kind(contents: Contents, kind: str) -> str:
    return next(each for each, content in contents.items() if content.startswith(kind.encode() + b" "))


def with_body(kind: str, change: Callable[[bytes], bytes]) -> Callable[[Contents], Contents]:
    """The same answer, with another body in the piece of this kind."""

    def forge(contents: Contents) -> Contents:
        piece = of_kind(contents, kind)
        head, body = contents[piece].split(b"\0", 1)
        changed = change(body)
        names = head.rsplit(b" ", 1)[0]
        return {**contents, piece: names + b" " + str(len(changed)).encode() + b"\0" + changed}

    return forge


def repeating(times: int) -> Callable[[bytes], bytes]:
    return lambda body: json.dumps({**json.loads(body), "arraychunk_ids": [0] * times}).encode()


def without(kind: str) -> Callable[[Contents], Contents]:
    return lambda contents: {**contents, of_kind(contents, kind): b""}


def many_pieces(contents: Contents) -> Contents:
    return {**{f"{number:064x}": b"ArrayChunk  1\0x" for number in range(1000)}, **contents}


UNREADABLE = "its answer cannot be read"
HOSTILE = {
    "an array that is no JSON": with_body("Array", lambda _: b"\xff not JSON"),
    "an array of a wrong kind of JSON": with_body("Array", lambda _: b'{"arraychunk_ids": {"a": 1}}'),
    "parts that are not there": with_body("Array", lambda body: body.replace(b"[0", b"[7")),
    "one part a hundred thousand times": with_body("Array", repeating(100_000)),
    "a description of empty objects": with_body("ArrayRecord", lambda _: b"[" + b"{}," * (1 << 20) + b"{}]"),
    "far too many pieces": many_pieces,
    "more than may come": with_body("ArrayChunk", lambda body: body + bytes(2 * LARGEST + (1 << 20))),
    "a record that is no record": with_body("RecordDict", lambda _: b"[]"),
}


def rehearsal(folder: Path) -> Rehearsal:
    return Rehearsal(folder, (stage_of(Troubled(training=TRAINING, trouble=()), quorum=0.25),))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pieces_are_their_clients_failure_and_take_no_memory(kind: str, tmp_path: Path) -> None:
    run = rehearsal(tmp_path / "run")
    grid = Pieces(run, {"bob": HOSTILE[kind]})
    tracemalloc.start()
    try:
        run.run(GridTransport(run.federation, grid, deadline=60, poll=0.01, max_bytes=LARGEST))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert [event["failed"] for event in run.notebook.rounds()] == [{"bob": UNREADABLE}] * 2
    lost = rehearsal(tmp_path / "lost")
    lost.run(Dropping(SameProcess(lost.federation), "bob"))
    assert torch.equal(run.final(), lost.final())


def test_honest_pieces_pass(tmp_path: Path) -> None:
    here, there = rehearsal(tmp_path / "here").run(), rehearsal(tmp_path / "there")
    there.run(GridTransport(there.federation, Pieces(there, {}), deadline=60, poll=0.01, max_bytes=LARGEST))
    assert torch.equal(here.final(), there.final())
    assert http_grid.pull_objects is pulling._pull  # Flower has not moved what we bound


def test_who_announces_and_never_sends_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are threads to fetch answers; the one who is left is heard all the same."""
    monkeypatch.setattr(flower, "FETCHERS", 2)
    run = rehearsal(tmp_path / "run")
    silent = NAMES[:3]
    grid = Pieces(run, dict.fromkeys(silent, without("ArrayChunk")))
    run.run(GridTransport(run.federation, grid, deadline=3, poll=0.01))
    for event in run.notebook.rounds():
        assert sorted(event["failed"]) == sorted(silent)


def test_memory_that_is_not_enough_is_that_clients_failure(tmp_path: Path) -> None:
    def exhausted(contents: Contents) -> Contents:
        raise MemoryError

    run = rehearsal(tmp_path / "run")
    run.run(GridTransport(run.federation, Pieces(run, {"bob": exhausted}), deadline=60, poll=0.01))
    reason = "its answer takes more memory than there is"
    assert [event["failed"] for event in run.notebook.rounds()] == [{"bob": reason}] * 2


def test_a_superlink_that_is_gone_is_nobodys_failure(tmp_path: Path) -> None:
    def gone(contents: Contents) -> Contents:
        raise ConnectionError("the SuperLink is gone")

    run = rehearsal(tmp_path / "run")
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        run.run(GridTransport(run.federation, Pieces(run, {"bob": gone}), deadline=60, poll=0.01))
