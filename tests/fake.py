"""A grid that needs no network, and the client of a generated app, loaded as Flower would."""

import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from personae.deployment.app import PACKAGE, write_app
from personae.deployment.desk import Desk
from personae.deployment.job import Job
from personae.runtime.flower import unwrapped
from personae.runtime.host import ClientHost
from personae.runtime.problems import PROBLEMS, ProblemLog
from toys import NAMES, Rehearsal

NAME = "Zebulon-Q-Featherstonehaugh"  # nobody: planted at clients, and looked for at the server


class FakeGrid(Grid):
    """Hands messages to a ClientApp at once, in the order in which they are fetched; knows nothing of networks."""

    def __init__(self, app: Any, desk: Path, job: str, names: Iterable[str] = NAMES) -> None:
        self.nodes = {name: 100 + index for index, name in enumerate(names)}
        self.app, self.desk, self.job = app, desk, job
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
        context = Context(
            run_id=1,
            node_id=message.metadata.dst_node_id,
            node_config={"desk": str(self.desk_of(message.metadata.dst_node_id))},
            state=RecordDict(),
            run_config={"job": self.job},
        )
        try:
            return self.app(message=message, context=context)
        except Exception as error:
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    def desk_of(self, node: int) -> Path:
        return self.desk

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


def _size(message: Message) -> int:
    if not message.has_content():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


class Recording(FakeGrid):
    """Keeps everything that reaches the server: bytes, and the texts of Flower's errors."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[bytes] = []

    def reply(self, message: Message) -> Message:
        reply = super().reply(message)
        self.heard.append(str(reply.error.reason).encode() if reply.has_error() else unwrapped(reply.content))
        return reply


@pytest.fixture(autouse=True)
def as_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def generated(folder: Path) -> ModuleType:
    """The client of a generated app, loaded as Flower would."""
    spec = importlib.util.spec_from_file_location("client", folder / PACKAGE / "client.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def desks(app: Path, sockets: Callable[[], Path]) -> Iterator[Callable[..., FakeGrid]]:
    """Makes grids whose clients are all at one desk, with the toys of a rehearsal; the desks close at the end."""
    with ExitStack() as opened:

        def make(run: Rehearsal, coding: str = "exact", max_bytes: int = 1 << 30) -> FakeGrid:
            job = Job("toys", {}, coding, max_bytes)
            write_app(app, job, app.parent / "out")
            path = sockets() / "socket"
            problems = ProblemLog(app.parent / "home" / PROBLEMS)
            desk = Desk(path, lambda job: ClientHost(run.federation, problems=problems), run.notices.append, problems)
            thread = threading.Thread(target=desk.serve)
            thread.start()
            opened.callback(thread.join)
            opened.callback(desk.close)
            return FakeGrid(generated(app).app, path, job.text())

        yield make
