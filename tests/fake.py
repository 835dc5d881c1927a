"""A grid that needs no network, with clients at their desks."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from personae.deployment.desk import Desk
from personae.deployment.job import Job
from personae.runtime.flower import asked_in, unwrapped, wrapped
from personae.runtime.host import ClientHost
from personae.runtime.problems import PROBLEMS, ProblemLog
from toys import NAMES, Rehearsal

NAME = "Zebulon-Q-Featherstonehaugh"  # nobody: planted at clients, and looked for at the server


class FakeGrid(Grid):
    """Hands messages to a desk at once, in the order in which they are fetched; knows nothing of networks.

    Clients are told `job` where the server does not tell them anything.
    """

    def __init__(self, desk: Desk | None, job: str = "", names: Iterable[str] = NAMES) -> None:
        self.nodes = {name: 100 + index for index, name in enumerate(names)}
        self.desk, self.job = desk, job
        self.sent: dict[str, Message] = {}
        self.mute: set[int] = set()  # nodes that never answer
        self.crossed = {"down": 0, "up": 0}
        self.half: set[int] = set()  # nodes that stop in the middle of their answer
        self.lock = threading.Lock()
        self.pulls = 0
        self.patience = threading.Event()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes.values())

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=number, name=name) for name, number in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = message.object_id
            message.metadata.__dict__["_message_id"] = number
            self.crossed["down"] += _size(message)
            self.sent[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        self.pulls += 1
        for number in sorted(message_ids):  # an order that has nothing to do with that of the clients
            message = self.sent[number]
            if message.metadata.dst_node_id in self.half:
                self.patience.wait(60)  # a SuperLink would wait for minutes
            if message.metadata.dst_node_id in self.mute | self.half:
                continue
            with self.lock:
                reply = self.reply(self.sent.pop(number))
                self.crossed["up"] += _size(reply)
            replies.append(reply)
        return replies

    def reply(self, message: Message) -> Message:
        told, frame = asked_in(message.content)
        desk = self.desk_of(message.metadata.dst_node_id)
        return Message(wrapped(desk.answer(told or self.job.encode(), frame)), reply_to=message)

    def desk_of(self, node: int) -> Desk:
        assert self.desk is not None
        return self.desk

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


class DesksOfTheirOwn(FakeGrid):
    """Each client has one."""

    def __init__(self, desks: dict[str, Desk]) -> None:
        super().__init__(None, "", desks)
        self._desks = desks

    def desk_of(self, node: int) -> Desk:
        return self._desks[next(name for name, number in self.nodes.items() if number == node)]


def _size(message: Message) -> int:
    if not message.has_content():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


class Recording(FakeGrid):
    """Keeps all bytes that reach the server."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[bytes] = []

    def reply(self, message: Message) -> Message:
        reply = super().reply(message)
        self.heard.append(unwrapped(reply.content))
        return reply


@pytest.fixture(autouse=True)
def as_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def grid_of(run: Rehearsal, home: Path, coding: str = "exact", max_bytes: int = 1 << 30) -> FakeGrid:
    """All clients of a rehearsal at one desk."""
    problems = ProblemLog(home / PROBLEMS)
    desk = Desk(lambda job: ClientHost(run.federation, problems=problems), run.notices.append, problems)
    return FakeGrid(desk, Job("toys", {}, coding, max_bytes).text())
