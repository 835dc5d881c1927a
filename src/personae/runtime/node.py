"""The gate's place at a SuperLink: turns come in, returns go out.

To Flower, the gate is one node, whatever the number of clients behind it. Flower sends a message as a tree of objects,
each with calls of its own, so a message for each client would cost far more than what is in it.
"""

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

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

from personae.errors import ConfigError
from personae.runtime.flower import Bells, unwrapped, wrapped
from personae.runtime.post import Return, Turn

LIFETIME = 60.0  # seconds of a sign of life; a SuperLink gives a node up after two of them
BEAT = 20.0  # seconds between two signs of life
POLL = 5.0  # seconds between two looks for a message where no bell rings
LISTEN = 0.01  # seconds between two looks whether one has rung
PIECE = 0.02, 1.0  # seconds before a piece that is not there yet is asked for again: the first time, and at the most
CALL = 600.0  # seconds that a call may take

Answering = Callable[[Turn], Return]


class Node:
    """Takes turns from a SuperLink, one after the other, in a thread of its own, until it leaves.

    What breaks the connection ends it: whoever started the SuperLink finds out, and starts another.
    """

    def __init__(
        self, superlink: str, trust: ssl.SSLContext, key: EllipticCurvePrivateKey, bells: Bells, answering: Answering
    ) -> None:
        self._superlink, self._key, self._bells, self._answering = superlink, key, bells, answering
        self._client = FleetHttpClient(
            f"https://{superlink}",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
            verify=trust,
            timeout=CALL,
        )
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("turns", self._work), ("signs of life", self._beat))
        ]

    def __enter__(self) -> Self:
        public = public_key_to_bytes(self._key.public_key())
        try:
            activated = self._client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=LIFETIME))
        except httpx.HTTPError as error:
            raise ConfigError(
                f"{self._superlink}: this SuperLink does not let the gate in ({error}); is it there, and does it know "
                "the gate's key (flwr supernode register)?"
            ) from error
        self._place = NodeProto(node_id=activated.node_id)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._place.node_id))
        self._client.close()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                if (asked := self._next()) is not None:
                    self._send(asked, self._answering(Turn.parse(unwrapped(asked.content))))
                    self._bells.ring()
        except (httpx.HTTPError, RuntimeError, ObjectPullError, ObjectPushError):
            return  # the SuperLink is gone
        finally:
            self._over.set()

    def _next(self) -> Message | None:
        for _ in range(int(POLL / LISTEN)):
            if self._bells.rung() or self._over.wait(LISTEN):
                break
        found = self._client.PullMessages(PullMessagesRequest(node=self._place))
        if not found.messages_list:
            return None
        announced = message_from_proto(found.messages_list[0])
        run = announced.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            found.message_object_trees[0],
            make_pull_object_fn_protobuf(self._client.PullObject, self._place, run),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._place, run),
            return_type=Message,
            max_time=announced.metadata.ttl,
            initial_backoff=PIECE[0],
            backoff_cap=PIECE[1],
        )
        message.metadata.__dict__["_message_id"] = announced.metadata.message_id
        return message

    def _send(self, request: Message, returned: Return) -> None:
        reply = Message(wrapped(returned.packed()), reply_to=request)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            taken = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._place,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._place, request.metadata.run_id, taken.session_id
            )
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push={*taken.objects_to_push})

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(httpx.HTTPError, RuntimeError):  # the other thread finds out
                self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._place, heartbeat_interval=LIFETIME))
