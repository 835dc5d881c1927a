"""A grid that needs no network, with clients at their desks."""

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
from personae.runtime.flower import unwrapped, wrapped
from personae.runtime.host import ClientHost
from personae.runtime.post import Answered, Post, Return, Turn
from personae.runtime.problems import PROBLEMS, ProblemLog
from toys import NAMES, Rehearsal

NAME = "Zebulon-Q-Featherstonehaugh"  # nobody: planted at clients, and looked for at the server


class FakeGrid(Grid):
    """A gate with a desk behind it, which answers when somebody asks for it; knows nothing of networks.

    Clients are told `job` where the server does not tell them anything.
    """

    def __init__(self, post: Post, desk: Desk | None, job: str = "", names: Iterable[str] = NAMES) -> None:
        self.connected = {*names}
        self.post, self.desk, self.job = post, desk, job
        self.sent: dict[str, Turn] = {}
        self.asked: dict[str, tuple[str, bytes, bytes]] = {}  # requests that nobody has answered
        self.absent: list[str] = []  # requests to whom is not there
        self.mute: set[str] = set()  # clients that never answer
        self.crossed = {"down": 0, "up": 0}
        self.pulls = 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [1]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=1, name="gate")]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self.take(Turn.parse(unwrapped(message.content))) for message in messages]

    def take(self, turn: Turn) -> str:
        bodies = {name: self.post.take(name).whole() for name in {each.body for each in turn.asked}}
        for each in turn.asked:
            if each.client not in self.connected:
                self.absent.append(each.number)
                continue
            frame = each.head + bodies[each.body]
            self.crossed["down"] += len(frame) + len(turn.told)
            self.asked[each.number] = each.client, turn.told, frame
        number = f"turn {len(self.sent)}"
        self.sent[number] = turn
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        (number,) = message_ids
        assert number in self.sent
        self.pulls += 1
        answered = [Answered(each, failure="it is not connected") for each in self.absent]
        self.absent.clear()
        for each in sorted(self.asked):  # an order that has nothing to do with that of the clients
            client, told, frame = self.asked[each]
            if client not in self.mute:
                del self.asked[each]
                content = self.reply(client, told, frame)
                self.crossed["up"] += len(content)
                answered.append(Answered(each, self.post.slip(content).left()))
        returned = Return(sorted(self.connected), answered)
        return [Message(wrapped(returned.packed()), 1, "query")]

    def reply(self, client: str, told: bytes, frame: bytes) -> bytes:
        return self.desk_of(client).answer(told or self.job.encode(), frame)

    def desk_of(self, client: str) -> Desk:
        assert self.desk is not None
        return self.desk

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


class DesksOfTheirOwn(FakeGrid):
    """Each client has one."""

    def __init__(self, post: Post, desks: dict[str, Desk]) -> None:
        super().__init__(post, None, "", desks)
        self._desks = desks

    def desk_of(self, client: str) -> Desk:
        return self._desks[client]


class Recording(FakeGrid):
    """Keeps all bytes that reach the server."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[bytes] = []

    def reply(self, client: str, told: bytes, frame: bytes) -> bytes:
        self.heard.append(super().reply(client, told, frame))
        return self.heard[-1]


@pytest.fixture(autouse=True)
def as_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.deployment.server.POLL", 0.02)  # no gate is there to ring a bell
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def grid_of(run: Rehearsal, home: Path, coding: str = "exact", max_bytes: int = 1 << 30) -> FakeGrid:
    """All clients of a rehearsal at one desk."""
    problems = ProblemLog(home / PROBLEMS)
    desk = Desk(lambda job: ClientHost(run.federation, problems=problems), run.notices.append, problems)
    return FakeGrid(Post(home / "post"), desk, Job("toys", {}, coding, max_bytes).text())
