"""A client's place at a SuperLink: what comes, what goes, and what happens where one of the two is gone."""

# ruff: noqa: N802 - Flower's own names

import json
import ssl
from pathlib import Path
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

from fake import as_a_server  # noqa: F401 - the fixture
from personae.runtime import node as nodes
from personae.runtime.flower import asking, in_array
from personae.runtime.node import STILL_CONNECTED, Disconnected, Node

KEY = ec.generate_private_key(ec.SECP256R1())


class SuperLink:
    """Stands for Flower's client and all that is behind it; `trouble` are answers before the right one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.waiting: list[Message] = []
        self.contents: dict[str, bytes] = {}
        self.got: dict[str, bytes] = {}  # the last answer, by the numbers of its pieces
        self.announced: list[Any] = []
        self.calls: list[str] = []
        self.trouble: list[int] = []
        self.confirmed: list[str] = []

    def ask(self, told: bytes, head: bytes, body: bytes) -> Message:
        message = Message(asking(told, head, in_array(body)), 7, "query", ttl=60)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.contents |= {each: thing.deflate() for each, thing in get_all_nested_objects(message).items()}
        self.waiting.append(message)
        return message

    def answer(self) -> bytes:
        """What came last, without the heads of its pieces."""
        (chunk,) = [content for content in self.got.values() if content.startswith(b"ArrayChunk ")]
        return chunk.split(b"\0", 1)[1]

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.trouble:
            request = httpx.Request("POST", f"https://here/v1/fleet/{name}")
            response = httpx.Response(self.trouble.pop(0), text="no", request=request)
            raise httpx.HTTPStatusError("no", request=request, response=response)

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
        self.confirmed.append(request.message_object_id)

    def PushMessages(self, request: Any) -> Any:
        self._call("push-messages")
        self.announced.append(request.messages_list[0].metadata.reply_to_message_id)
        self.got = {}
        return SimpleNamespace(objects_to_push=_all(request.message_object_trees[0]), session_id="s")

    def PushObject(self, request: Any) -> Any:
        self._call("push-object")
        self.got[request.object_id] = request.object_content
        return SimpleNamespace(stored=True)

    def close(self) -> None:
        self.calls.append("close")


def _all(tree: Any) -> list[str]:
    return [tree.object_id, *(each for child in tree.children for each in _all(child))]


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    made = SuperLink()
    monkeypatch.setattr(nodes, "FleetHttpClient", lambda *_, **__: made)
    monkeypatch.setattr(nodes, "POLL", 0.0)
    monkeypatch.setattr(nodes, "BEAT", 3600.0)
    monkeypatch.setattr(nodes, "_PAUSE", 0.01)
    return made


def node_in(folder: Path) -> Node:
    return Node("here:1", ssl.create_default_context(), KEY, folder / "node.json", b"unfinished")


def test_a_request_comes_with_what_is_told_and_its_answer_goes(link: SuperLink, tmp_path: Path) -> None:
    node = node_in(tmp_path).enter()
    assert node.receive() is None
    sent = link.ask(b"the job", b"head,", b"body")
    asked = node.receive()
    assert asked is not None
    assert (asked.told, asked.frame) == (b"the job", b"head,body")
    assert link.confirmed == [sent.object_id]
    node.answer(asked, b"what was asked for")
    assert (link.announced, link.answer()) == ([sent.object_id], b"what was asked for")
    node.leave()
    assert link.calls[-2:] == ["deactivate-node 7", "close"]
    node.leave()  # once is enough
    assert link.calls.count("close") == 1


def test_who_was_killed_takes_its_place_again_and_tells_that_nobody_need_wait(link: SuperLink, tmp_path: Path) -> None:
    killed = node_in(tmp_path).enter()
    sent = link.ask(b"", b"head", b"body")
    assert killed.receive() is not None
    link.calls.clear()
    again = node_in(tmp_path).enter()
    assert link.calls[:2] == ["deactivate-node 7", "activate-node"]
    assert (link.announced, link.answer()) == ([sent.object_id], b"unfinished")
    link.announced.clear()
    again.leave()
    node_in(tmp_path).enter()
    assert link.announced == []  # told once
    assert (tmp_path / "node.json").stat().st_mode & 0o077 == 0


def test_who_leaves_in_the_middle_says_so(link: SuperLink, tmp_path: Path) -> None:
    node = node_in(tmp_path).enter()
    link.ask(b"", b"head", b"body")
    node.receive()
    node.leave()
    assert link.answer() == b"unfinished"
    assert json.loads((tmp_path / "node.json").read_bytes())["request"] == ""


def test_a_superlink_that_is_being_started_is_waited_for_and_a_refusal_is_told(link: SuperLink, tmp_path: Path) -> None:
    link.trouble = [503, 502, 503]
    node = node_in(tmp_path).enter()
    assert link.calls == ["activate-node"] * 4
    link.trouble = [401]
    with pytest.raises(Disconnected, match="the server answered 401: no"):
        node.receive()
    link.trouble = [409]
    with pytest.raises(Disconnected, match=STILL_CONNECTED):
        node_in(tmp_path / "elsewhere").enter()


def test_a_note_that_cannot_be_read_is_none(link: SuperLink, tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")
    node_in(tmp_path).enter()
    assert link.calls == ["activate-node"]
