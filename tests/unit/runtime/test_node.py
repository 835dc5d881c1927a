"""The gate's place at a SuperLink: what comes, what goes, and what happens where the SuperLink is gone."""

# ruff: noqa: N802 - Flower's own names

import ssl
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fake import as_a_server  # noqa: F401 - the fixture
from personae.runtime import node as nodes
from personae.runtime.flower import unwrapped, wrapped
from personae.runtime.node import Node
from personae.runtime.post import Answered, Asked, Return, Turn

KEY = ec.generate_private_key(ec.SECP256R1())


class SuperLink:
    """Stands for Flower's client and all that is behind it."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.contents: dict[str, bytes] = {}
        self.got: dict[str, bytes] = {}  # the last reply, by the numbers of its pieces
        self.root = ""
        self.replies_to: list[str] = []
        self.calls: list[str] = []
        self.gone = False

    def ask(self, turn: Turn) -> str:
        message = Message(wrapped(turn.packed()), 7, "query", ttl=60)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.contents |= {each: thing.deflate() for each, thing in get_all_nested_objects(message).items()}
        self.waiting.append(message)
        return str(message.object_id)

    def returned(self) -> Return:
        message: Any = inflate_object_from_contents(self.root, self.got)
        return Return.parse(unwrapped(message.content))

    def _call(self, name: str) -> None:
        if self.gone:
            raise httpx.ConnectError("gone")
        self.calls.append(name)

    def ActivateNode(self, request: Any) -> Any:
        self._call("activate-node")
        return SimpleNamespace(node_id=7)

    def DeactivateNode(self, request: Any) -> None:
        self._call(f"deactivate-node {request.node_id}")

    def PullMessages(self, request: Any) -> PullMessagesResponse:
        self._call("pull-messages")
        found = [self.waiting.pop(0)] if self.waiting else []
        return PullMessagesResponse(
            messages_list=[message_to_proto(Message(RecordDict(), metadata=each.metadata)) for each in found],
            message_object_trees=[get_object_tree(each) for each in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:
        self._call("pull-object")
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=self.contents[request.object_id]
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        self._call("confirm")

    def PushMessages(self, request: Any) -> Any:
        self._call("push-messages")
        self.replies_to.append(request.messages_list[0].metadata.reply_to_message_id)
        self.got, self.root = {}, request.message_object_trees[0].object_id
        return SimpleNamespace(objects_to_push=_all(request.message_object_trees[0]), session_id="s")

    def PushObject(self, request: Any) -> Any:
        self._call("push-object")
        self.got[request.object_id] = request.object_content
        return SimpleNamespace(stored=True)

    def close(self) -> None:
        self.calls.append("close")


def _all(tree: Any) -> list[str]:
    return [tree.object_id, *(each for child in tree.children for each in _all(child))]


class Bells:
    def __init__(self) -> None:
        self.asked, self.answered = threading.Event(), threading.Event()

    def ring(self) -> None:
        self.answered.set()

    def rung(self) -> bool:
        rung = self.asked.is_set()
        self.asked.clear()
        return rung


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    made = SuperLink()
    monkeypatch.setattr(nodes, "FleetHttpClient", lambda *_, **__: made)
    monkeypatch.setattr(nodes, "POLL", 3600.0)
    monkeypatch.setattr(nodes, "BEAT", 3600.0)
    return made


def node_of(bells: Bells, answering: Callable[[Turn], Return]) -> Node:
    return Node("here:1", ssl.create_default_context(), KEY, bells, answering)


def test_a_turn_comes_when_the_bell_rings_and_its_return_goes(link: SuperLink) -> None:
    """In few calls: Flower has an object for the message, for its content, and for the record in it."""
    bells, taken = Bells(), list[Turn]()
    asked, returned = Turn(b"the job", [Asked("1", "ann", b"head", "a")]), Return(["ann"], [Answered("1", "b")])

    def answering(turn: Turn) -> Return:
        taken.append(turn)
        return returned

    with node_of(bells, answering):
        number = link.ask(asked)
        bells.asked.set()
        assert bells.answered.wait(30)
    assert taken == [asked]
    assert link.replies_to == [number]
    assert link.returned() == returned
    assert len(link.calls) == 1 + (1 + 3 + 1) + (1 + 3) + 2
    assert link.calls[-2:] == ["deactivate-node 7", "close"]


def test_a_superlink_that_is_gone_ends_the_work(link: SuperLink) -> None:
    bells = Bells()
    node = node_of(bells, lambda turn: Return())
    with node:
        link.gone = True
        bells.asked.set()
        end = time.monotonic() + 30
        while any(thread.is_alive() for thread in node._threads):
            assert time.monotonic() < end
            time.sleep(0.01)
