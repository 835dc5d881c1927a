"""The same run in one process and through Flower's messages, with a grid that needs no network."""

import importlib.util
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from personae.algorithms import ALGORITHMS
from personae.deployment.app import PACKAGE, write_app
from personae.deployment.desk import Desk
from personae.deployment.job import Job
from personae.runtime.flower import GridTransport
from personae.runtime.host import ClientHost
from toys import NAMES, Rehearsal, quickly, stage_of


class FakeGrid(Grid):
    """Hands messages to a ClientApp at once, in the order in which they are fetched; knows nothing of networks."""

    def __init__(self, app: Any, desk: Path, job: str, names: Iterable[str] = NAMES) -> None:
        self.nodes = {name: 100 + index for index, name in enumerate(names)}
        self.app, self.desk, self.job = app, desk, job
        self.sent: dict[str, Message] = {}
        self.mute: set[int] = set()  # nodes that never answer
        self.crossed = {"down": 0, "up": 0}

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
        for number in sorted(message_ids):  # an order that has nothing to do with that of the clients
            message = self.sent[number]
            if message.metadata.dst_node_id in self.mute:
                continue
            reply = self.reply(self.sent.pop(number))
            self.crossed["up"] += _size(reply)
            replies.append(reply)
        return replies

    def reply(self, message: Message) -> Message:
        context = Context(
            run_id=1,
            node_id=message.metadata.dst_node_id,
            node_config={"desk": str(self.desk)},
            state=RecordDict(),
            run_config={"job": self.job},
        )
        try:
            return self.app(message=message, context=context)
        except Exception as error:
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


def _size(message: Message) -> int:
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def generated(folder: Path) -> ModuleType:
    """The client of a generated app, loaded as Flower would."""
    spec = importlib.util.spec_from_file_location("client", folder / PACKAGE / "client.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def grids(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes grids whose clients are all at one desk, with the toys of a rehearsal."""
    desks = []

    def make(run: Rehearsal, coding: str = "exact", max_bytes: int = 1 << 30) -> FakeGrid:
        job = Job("toys", {}, coding, max_bytes)
        write_app(tmp_path / "app", job, tmp_path / "out")
        path = tmp_path_factory.mktemp("desk") / "socket"
        desk = Desk(path, lambda job: ClientHost(run.federation), run.notices.append)
        thread = threading.Thread(target=desk.serve)
        thread.start()
        desks.append((desk, thread))
        return FakeGrid(generated(tmp_path / "app").app, path, job.text())

    yield make
    for desk, thread in desks:
        desk.close()
        thread.join()


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
    there.run(GridTransport(there.federation, grid, deadline=60, poll=0.01))
    assert records(there) == records(here)
    assert not there.notices or all("as" in notice for notice in there.notices)
