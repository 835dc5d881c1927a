"""A person's name in folders, files, errors and tracebacks of a client: however it fails, no server gets to see it."""

import errno
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fake import NAME, FakeGrid, Recording, as_a_server  # noqa: F401 - the fixture
from personae.algorithms import FedPE
from personae.algorithms.fedpe import Down, Private, Up
from personae.core import wire
from personae.core.algorithm import Client
from personae.core.message import Trouble
from personae.core.payload import FailureCode
from personae.core.problem import Problem
from personae.deployment.desk import Desk
from personae.deployment.job import Job
from personae.errors import ConfigError, DataError, Diverged, Interrupted, Unreadable
from personae.runtime.coding import CODINGS
from personae.runtime.flower import GridTransport
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess, WorkerProcesses
from personae.runtime.post import Post
from personae.runtime.problems import PROBLEMS, ProblemLog
from toys import TRAINING, Rehearsal, Smuggler, stage_of

TROUBLE = '{"trouble": true}'
PHOTOGRAPH = f"/srv/faces/{NAME}/{NAME}-portrait.jpg"

ERRORS: dict[Problem, Callable[[], Exception]] = {
    Problem.DIVERGED: lambda: Diverged(f"the loss of {NAME} is nan"),
    Problem.UNREADABLE: lambda: Unreadable(f"{PHOTOGRAPH}: cannot be used"),
    Problem.DATA: lambda: DataError(f"{NAME} has but one image"),
    Problem.CONFIGURATION: lambda: ConfigError(f"{PHOTOGRAPH}: not with this option"),
    Problem.MEMORY: lambda: MemoryError(f"for {NAME}"),
    Problem.DISK_FULL: lambda: OSError(errno.ENOSPC, "No space left on device", PHOTOGRAPH),
    Problem.INTERNAL: lambda: ZeroDivisionError(f"no image of {NAME}"),
}
OTHERS: list[tuple[Callable[[], Exception], Problem]] = [
    (lambda: FileNotFoundError(errno.ENOENT, "No such file or directory", PHOTOGRAPH), Problem.UNREADABLE),
    (lambda: PermissionError(errno.EACCES, "Permission denied", PHOTOGRAPH), Problem.UNREADABLE),
    (lambda: OSError(errno.ENOMEM, "Cannot allocate memory", PHOTOGRAPH), Problem.MEMORY),
    (lambda: RuntimeError(f"DefaultCPUAllocator: can't allocate memory for {NAME}"), Problem.MEMORY),
    (lambda: torch.OutOfMemoryError(NAME), Problem.MEMORY),
    (lambda: Interrupted(f"{PHOTOGRAPH}: the disk is full"), Problem.DISK_FULL),
    (lambda: KeyError(NAME), Problem.INTERNAL),
    (type(NAME, (Exception,), {}), Problem.INTERNAL),
    (lambda: UnicodeDecodeError("utf-8", NAME.encode(), 0, 1, NAME), Problem.INTERNAL),
]
KINDS = [*((error, problem) for problem, error in ERRORS.items()), *OTHERS]


@dataclass(frozen=True, kw_only=True)
class Failing(FedPE):
    """FedPE with clients that fail as one of `KINDS`, or send what they may not: (client, how)."""

    trouble: tuple[tuple[str, int | str], ...] = ()

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        up, kept = super().local(down, private, client)
        kind = dict(self.trouble).get(client.info.name)
        if kind is None:
            return up, kept
        if kind == "undeclared":
            return Smuggler(model=up.model, samples=up.samples, training=up.training, more=up.samples), kept
        if kind == "unwritable":
            up.model.flat.fill_(1e30)
            return up, kept
        assert isinstance(kind, int)
        raise KINDS[kind][0]()


@pytest.fixture
def grids(tmp_path: Path) -> Any:
    """Grids whose clients are at one desk, with a home of a telling name."""

    def make(run: Rehearsal, job: Job) -> Recording:
        problems = ProblemLog(tmp_path / NAME / PROBLEMS)
        desk = Desk(lambda job: ClientHost(run.federation, problems=problems), lambda line: None, problems)
        return Recording(Post(tmp_path / "post"), desk, job.text())

    return make


def rehearse(folder: Path, **trouble: int | str) -> Rehearsal:
    failing = Failing(training=TRAINING, trouble=tuple(trouble.items()))
    return Rehearsal(folder, (stage_of(failing, rounds=1, quorum=0.25),))


def over(run: Rehearsal, grid: FakeGrid, coding: str = "exact") -> GridTransport:
    return GridTransport(run.federation, grid, grid.post, deadline=60, poll=0.01, coding=CODINGS[coding])


def assert_told(run: Rehearsal, grid: Recording, home: Path, problem: Problem) -> None:
    """The server knows a code and says it in its own words; the client has the name in a log of its own."""
    (event,) = run.notebook.rounds()
    assert event["failed"] == {"bob": problem.words}
    told = f"{event['stage']}, round 1: bob failed: {problem.words}; the details are in that client's own log"
    assert any(notice.startswith(told) for notice in run.notices)
    (entry,) = [entry for entry in run.notebook.books["ledger"] if entry["payload"] == "FailureCode"]
    assert (entry["client"], entry["direction"], entry["bytes"]) == ("bob", "up", 8)
    (heard,) = [content for content in grid.heard if content[4:].startswith(TROUBLE.encode())]
    assert wire.from_bytes(heard[4 + len(TROUBLE) :]).scalars == {"failure/value": problem.value}
    assert len(heard) < 200
    server = [*grid.heard, repr(run.notices).encode(), repr(run.notebook.books).encode(), *run.files().values()]
    assert not any(NAME.encode() in content for content in server)
    log = home / PROBLEMS
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert f"round 1: train as bob: {problem.words}\n" in log.read_text()
    assert "Traceback (most recent call last)" in log.read_text()


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_whatever_a_client_raises_its_server_is_told_a_code(kind: int, tmp_path: Path, grids: Any) -> None:
    run = rehearse(tmp_path / "run", bob=kind)
    grid = grids(run, Job("toys", {}))
    run.run(over(run, grid))
    assert_told(run, grid, tmp_path / NAME, KINDS[kind][1])
    assert NAME in (tmp_path / NAME / PROBLEMS).read_text()


def test_what_may_not_be_sent_or_written_is_a_code(tmp_path: Path, grids: Any) -> None:
    run = rehearse(tmp_path / "undeclared", bob="undeclared")
    grid = grids(run, Job("toys", {}))
    run.run(over(run, grid))
    assert_told(run, grid, tmp_path / NAME, Problem.UNDECLARED)
    run = rehearse(tmp_path / "unwritable", bob="unwritable")
    grid = grids(run, Job("toys", {}, "fp16"))
    run.run(over(run, grid, "fp16"))
    assert_told(run, grid, tmp_path / NAME, Problem.UNWRITABLE)


@pytest.mark.parametrize("transport", [SameProcess, lambda federation: WorkerProcesses(federation, 2)])
def test_a_simulation_is_told_the_same_and_where_the_details_are(transport: Any, tmp_path: Path) -> None:
    kinds = {"ann": 0, "bob": 1, "eve": 6}
    run = rehearse(tmp_path / "run", **kinds)
    with closing(transport(run.federation)) as used:
        run.run(used)
    (event,) = run.notebook.rounds()
    assert event["failed"] == {name: KINDS[kind][1].words for name, kind in kinds.items()}
    log = tmp_path / "run" / "private" / PROBLEMS
    for name, words in event["failed"].items():
        assert f"fedpe, round 1: {name} failed: {words}; the details are in {log}" in run.notices
    assert log.read_text().count(PHOTOGRAPH) == 1
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    run = rehearse(tmp_path / "full", bob=5)
    with (
        closing(transport(run.federation)) as used,
        pytest.raises(Interrupted, match="the disk is full; free some space and resume"),
    ):
        run.run(used)


def test_a_request_that_cannot_be_read(tmp_path: Path, grids: Any) -> None:
    run = rehearse(tmp_path / "run")
    grid = grids(run, Job("toys", {}))
    answer = grid.desk.answer(grid.job.encode(), b"\xff" * 50 + NAME.encode())
    assert b'"request"' in answer.replace(b"\\", b"")
    assert NAME.encode() not in answer


# ------------------------------------------------------------------------------------------------- a client that lies


def framed(header: str, packet: wire.Packet) -> bytes:
    return len(header).to_bytes(4, "little") + header.encode() + wire.to_bytes(packet)


def stuffed(content: bytes) -> bytes:
    """An honest answer with one entry more."""
    end = 4 + int.from_bytes(content[:4], "little")
    packet = wire.from_bytes(content[end:])
    packet.arrays[NAME] = torch.zeros(1)
    return content[:end] + wire.to_bytes(packet)


def misnamed(content: bytes) -> bytes:
    """An honest answer in which an entry of the model has another name."""
    end = 4 + int.from_bytes(content[:4], "little")
    packet = wire.from_bytes(content[end:])
    packet.arrays[f"model/{NAME}"] = torch.zeros(1)
    return content[:end] + wire.to_bytes(packet)


def figured(content: bytes) -> bytes:
    """An honest answer with a sentence for the name of a figure."""
    end = 4 + int.from_bytes(content[:4], "little")
    packet = wire.from_bytes(content[end:])
    field = "training" if "training/loss" in packet.scalars else "metrics"
    packet.scalars[f"{field}/{NAME}, born in 1871"] = 1.0
    return content[:end] + wire.to_bytes(packet)


def noted(content: bytes) -> bytes:
    """An honest answer with a note in the header of its arrays."""
    end = 4 + int.from_bytes(content[:4], "little")
    size = int.from_bytes(content[end : end + 8], "little")
    head = content[end + 8 : end + 8 + size].replace(
        b'{"__metadata__":{', b'{"__metadata__":{"note":"%s",' % NAME.encode()
    )
    return content[:end] + len(head).to_bytes(8, "little") + head + content[end + 8 + size :]


LIES: list[Callable[[bytes], bytes]] = [
    lambda content: framed(TROUBLE, wire.Packet({}, {"failure/value": NAME})),
    lambda content: framed(TROUBLE, wire.Packet({}, {"failure/value": "diverged", "failure/name": NAME})),
    lambda content: framed(TROUBLE, wire.Packet({}, {"failure/value": "diverged", NAME: 1})),
    lambda content: framed(TROUBLE, wire.Packet({NAME: torch.zeros(1)}, {"failure/value": "diverged"})),
    lambda content: framed(TROUBLE, wire.Packet({}, {"failure": NAME})),
    lambda content: framed(f'{{"trouble": "{NAME}"}}', wire.Packet({}, {"failure/value": "diverged"})),
    lambda content: framed(f'{{"{NAME}": 1}}', wire.Packet({}, {})),
    lambda content: framed(f'{{"failure": "{NAME}", "diverged": true}}', wire.Packet({}, {})),
    lambda content: framed(f'"{NAME}"', wire.Packet({}, {})),
    lambda content: NAME.encode() * 20,
    stuffed,
    misnamed,
    figured,
    noted,
]


class Lying(Recording):
    """bob answers something else."""

    lie: Callable[[bytes], bytes]

    def reply(self, client: str, told: bytes, frame: bytes) -> bytes:
        content = super().reply(client, told, frame)
        return self.lie(content) if client == "bob" else content


def test_what_a_lying_client_says_is_neither_printed_nor_kept(tmp_path: Path, grids: Any, capfd: Any) -> None:
    first = rehearse(tmp_path / "first")
    honest = grids(first, Job("toys", {}))
    for number, lie in enumerate(LIES):
        run = rehearse(tmp_path / str(number))
        grid = Lying(honest.post, honest.desk, honest.job)
        grid.lie = lie
        run.run(over(run, grid))
        (event,) = run.notebook.rounds()
        assert list(event["failed"]) == ["bob"], number
        assert event["failed"]["bob"].startswith(("its answer is not what was declared", "its answer cannot"))
        assert not any("diverged" in notice for notice in run.notices)
        server = [repr(run.notices).encode(), repr(run.notebook.books).encode(), *run.files().values()]
        assert not any(NAME.encode() in content for content in server), number
    heard = capfd.readouterr()
    assert NAME not in heard.out + heard.err


def test_a_code_is_one_of_the_list() -> None:
    layout = Rehearsal(Path(), (stage_of(FedPE()),)).federation.backbone().layout
    for problem in Problem:
        trouble = Trouble(failure=FailureCode(problem))
        packet = wire.from_bytes(wire.to_bytes(wire.encode(trouble)))
        assert wire.decode(Trouble, packet, layout) == trouble
        assert trouble.failure.bytes == 8
    for value in (NAME, "", None, 3, True, "DIVERGED"):
        with pytest.raises(wire.WireError) as error:
            wire.decode(Trouble, wire.Packet({}, {"failure/value": value}), layout)
        assert error.value.field == "failure"
        with pytest.raises(ValueError, match=r"FailureCode is none of the known codes$"):
            FailureCode(value)  # type: ignore[arg-type]
