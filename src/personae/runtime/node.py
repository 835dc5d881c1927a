"""A client's place at a SuperLink, in the client's own process: requests come in, answers go out.

Flower's SuperNode does the same with programs of its own. It fetches the app that a server sends with a run, and starts
a process for every request, which loads that app. Here nothing of the app is fetched: a client takes messages, which
are data, and runs the code that is installed. Many of these nodes fit into one process.
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from personae.files import write_bytes
from personae.runtime.flower import asked_in, wrapped

LIFETIME = 15.0  # seconds of a sign of life; a SuperLink gives a client up after two of them
BEAT = 10.0  # seconds between two signs of life
POLL = 1.0  # seconds between two looks for a request, where the server does not hold the call until there is one
PIECE = 0.05, 1.0  # seconds before a piece that is not there yet is asked for again: the first time, and at the most
CALL = 60.0  # seconds that a call may take; a gate holds one for less
PATIENCE = 60.0  # seconds for which a call that does not get through is repeated
STILL_CONNECTED = "the server still counts this client's last connection; it misses it within half a minute"
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_COME_AGAIN = (502, 503, 504)  # a SuperLink is being started, behind its gate

Request_ = TypeVar("Request_")
Response_ = TypeVar("Response_")


class Disconnected(Exception):
    """A connection is gone, in words for whoever reads the client's screen."""


@dataclass(frozen=True)
class Asked:
    """A request, with what the server tells about its run."""

    message: Message
    told: bytes
    frame: bytes


class Node:
    """One client at one SuperLink, from `enter` to `leave`.

    `memory` is a file in which it notes where it stands. A client that was killed then takes its place again at once,
    instead of waiting until the SuperLink has missed it. `unfinished` is what it answers to a request in the middle of
    which it was stopped, so that nobody waits for it until the deadline.
    """

    def __init__(
        self, server: str, trust: ssl.SSLContext, key: EllipticCurvePrivateKey, memory: Path, unfinished: bytes
    ) -> None:
        self._key, self._memory, self._unfinished = key, memory, unfinished
        self._client = FleetHttpClient(
            f"https://{server}",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
            verify=trust,
            timeout=CALL,
        )
        self._over = threading.Event()
        self._place: NodeProto | None = None
        self._at_work: Message | None = None

    def enter(self) -> Self:
        before = self._remembered()
        if before:
            with suppress(httpx.HTTPError):  # it is not there any more
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=before["node"]))
        public = public_key_to_bytes(self._key.public_key())
        request = ActivateNodeRequest(public_key=public, heartbeat_interval=LIFETIME)
        self._place = NodeProto(node_id=self._through(self._client.ActivateNode, request).node_id)
        if before.get("request") and before["node"] == self._place.node_id:
            interrupted = message_from_proto(MessageProto.FromString(base64.b64decode(before["request"])))
            self._send(interrupted, self._unfinished)
        self._remember(None)
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()
        return self

    def receive(self) -> Asked | None:
        """The next request; None where there was none for a while."""
        began = time.monotonic()
        found = self._through(self._client.PullMessages, PullMessagesRequest(node=self._there))
        if not found.messages_list:
            self._over.wait(max(0.0, POLL - (time.monotonic() - began)))
            return None
        announced, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run = announced.metadata.run_id
        self._at_work = announced
        self._remember(announced)
        try:
            message = pull_and_inflate_object_from_tree(
                tree,
                make_pull_object_fn_protobuf(self._repeating("PullObject"), self._there, run),
                make_confirm_message_received_fn_protobuf(self._repeating("ConfirmMessageReceived"), self._there, run),
                return_type=Message,
                max_time=announced.metadata.ttl,
                initial_backoff=PIECE[0],
                backoff_cap=PIECE[1],
            )
        except ObjectPullError as error:
            raise Disconnected(f"a request did not come to its end ({error})") from error
        return Asked(announced, *asked_in(message.content))

    def answer(self, asked: Asked, content: bytes) -> None:
        self._send(asked.message, content)
        self._at_work = None
        self._remember(None)

    def leave(self) -> None:
        """As well as it can be done at once; it may be another thread that says so."""
        if self._over.is_set():
            return
        self._over.set()
        with suppress(httpx.HTTPError, Disconnected):
            if self._at_work is not None:
                self._send(self._at_work, self._unfinished)
                self._remember(None)
        if self._place is not None:
            with suppress(httpx.HTTPError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._place.node_id))
        self._client.close()

    @property
    def _there(self) -> NodeProto:
        assert self._place is not None, "nobody entered"
        return self._place

    def _send(self, request: Message, content: bytes) -> None:
        reply = Message(wrapped(content), reply_to=request)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            announced = PushMessagesRequest(
                node=self._there,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],
            )
            taken = self._through(self._client.PushMessages, announced)
            push = make_push_object_fn_protobuf(
                self._repeating("PushObject"), self._there, request.metadata.run_id, taken.session_id
            )
            try:
                push_objects(get_all_nested_objects(reply), push, object_ids_to_push={*taken.objects_to_push})
            except ObjectPushError as error:  # whoever asked does not wait for it any more
                raise Disconnected(f"an answer was not taken ({error})") from error

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(httpx.HTTPError):  # the thread that asks for requests finds out
                self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._there, heartbeat_interval=LIFETIME))

    def _repeating(self, call: str) -> Callable[[Any], Any]:
        return lambda request: self._through(getattr(self._client, call), request)

    def _through(self, call: Callable[[Request_], Response_], request: Request_) -> Response_:
        """A call, repeated for a while where the network or a SuperLink that is being started is in its way."""
        pause, end = _PAUSE, time.monotonic() + PATIENCE
        while True:
            try:
                return call(request)
            except httpx.HTTPStatusError as error:
                reason = _words(error.response)
                if error.response.status_code not in _COME_AGAIN:
                    raise Disconnected(reason) from error
            except (httpx.HTTPError, RuntimeError) as error:  # httpx says so where another thread has closed it
                reason = str(error) or type(error).__name__
            if time.monotonic() + pause > end or self._over.wait(pause):
                raise Disconnected(reason)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _remember(self, request: Message | None) -> None:
        proto = message_to_proto(remove_content_from_message(request)).SerializeToString() if request else b""
        noted = {"node": self._there.node_id, "request": base64.b64encode(proto).decode()}
        write_bytes(self._memory, json.dumps(noted).encode(), durable=False, private=True)

    def _remembered(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self._memory.read_bytes())
            return found
        return {}


def _words(response: httpx.Response) -> str:
    """Of a refusal; a SuperLink says what it means in JSON, and a gate in plain words."""
    if "/activate-node" in str(response.request.url) and response.status_code != httpx.codes.UNAUTHORIZED:
        return STILL_CONNECTED
    return f"the server answered {response.status_code}: {response.text[:200]}"
