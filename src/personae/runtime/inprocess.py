"""Clients on this machine: in this process, or in worker processes of cores or GPUs."""

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from personae.core.algorithm import ClientInfo
from personae.core.message import Trouble
from personae.core.payload import FailureCode
from personae.core.problem import Problem
from personae.core.threads import torch_threads
from personae.errors import Interrupted
from personae.files import settle
from personae.interrupts import deaf_children
from personae.progress import unheard
from personae.runtime import frames
from personae.runtime.federation import Federation
from personae.runtime.host import ClientHost
from personae.runtime.problems import PROBLEMS
from personae.runtime.shelf import Shelf, shelves
from personae.runtime.store import PrivateStore
from personae.runtime.transport import TRAIN, Answer, Failure, Request, Transport

_DISK_FULL = Trouble(failure=FailureCode(Problem.DISK_FULL))
_UNKEPT = Trouble(failure=FailureCode(Problem.UNKEPT))
ENDING = 2.0  # seconds for worker processes to end by themselves
STREAMS = 16  # clients at once that fill a GPU with networks of the size that is trained on faces
LANES = 4  # of these in one process: more would wait for its interpreter


def local_transport(
    federation: Federation, workers: int, device: str = "cpu", notify: Callable[[str], None] = unheard
) -> Transport:
    """Clients one after the other for one worker, else so many at once: in a process each, or in streams of a GPU.

    Several GPUs share the processes, and each has at least one. On a CPU the results are the same to the bit. `notify`
    hears of processes that end before their time.
    """
    devices = devices_of(device)
    if workers <= 1 and len(devices) == 1:
        return SameProcess(federation, device)
    return WorkerProcesses(federation, max(workers, len(devices)), notify, devices, 1 if device == "cpu" else LANES)


def devices_of(device: str) -> tuple[str, ...]:
    """The GPUs that `cuda` stands for: all that this process may see."""
    several = torch.cuda.device_count() if device == "cuda" else 1
    return (device,) if several <= 1 else tuple(f"{device}:{number}" for number in range(several))


class SameProcess:
    """One client after the other, with nothing in between."""

    def __init__(self, federation: Federation, device: str = "cpu") -> None:
        self._host = ClientHost(federation, device)
        self._kept = _Kept(federation)
        self.problems = str(federation.private / PROBLEMS)

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        for request in self._kept.noting(requests):
            with torch_threads(1):
                answer = self._host.handle(request)
            yield answer

    def settle(self) -> None:
        self._kept.settle()

    def close(self) -> None:
        """There is nothing to end."""


class _Kept:
    """What clients of this machine keep: one look at the disk a round, instead of one a client."""

    def __init__(self, federation: Federation) -> None:
        self._private = federation.private
        self._paths: list[Path] = []

    def noting(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            if request.task == TRAIN:
                store = PrivateStore.of(self._private, request.client.name)
                self._paths.append(store.path(request.stage, request.round))
            yield request

    def settle(self) -> None:
        settle(self._paths)
        self._paths.clear()


class WorkerProcesses:
    """A process per core, or some per GPU with several lanes: requests and answers travel as bytes.

    A lane has one client at a time. On a GPU it has a stream and a network of its own, because one client alone would
    not fill it; lanes are in several processes, because an interpreter starts the work of one client at a time.
    Processes are dealt over the devices in turn.
    A process that ends (for lack of memory, say) is not replaced: its clients are asked again by another one, and begin
    where they began, so nothing is lost. One that is there when two of them end in a round has failed.
    """

    def __init__(
        self,
        federation: Federation,
        workers: int,
        notify: Callable[[str], None] = unheard,
        devices: Sequence[str] = ("cpu",),
        lanes: int = 1,
    ) -> None:
        self._federation, self._notify = federation, notify
        self.problems = str(federation.private / PROBLEMS)
        self._kept = _Kept(federation)
        self._layout = federation.backbone().layout
        context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, SpawnProcess] = {}
        self._shelves: dict[Connection, Shelf] = {}
        boxes = shelves(workers, self._layout.size if federation.acceleration.sharing else 0)
        home = devices[0].partition(":")[0]  # where the server is
        processes = min(workers, max(len(devices), -(-workers // lanes)))
        for number, device in zip(range(processes), cycle(devices), strict=False):
            pipes = {context.Pipe(): Shelf(boxes=own, device=home) for own in boxes[number::processes]}
            theirs = [(end, replace(shelf, device=device)) for (_, end), shelf in pipes.items()]
            process = context.Process(target=_work, name=device, args=(theirs, federation, device), daemon=True)
            with deaf_children():
                process.start()
            for end, _ in theirs:
                end.close()
            self._workers |= {ours: process for ours, _ in pipes}
            self._shelves |= {ours: shelf for (ours, _), shelf in pipes.items()}

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        idle, busy = list(self._workers), dict[Connection, Request]()
        pending, again, unlucky = self._kept.noting(requests), list[Request](), set[ClientInfo]()

        def employ() -> None:
            idle[:] = [connection for connection in idle if connection in self._workers]
            while idle and (request := again.pop() if again else next(pending, None)) is not None:
                busy[idle[-1]] = request
                with suppress(BrokenPipeError, ConnectionResetError):  # a worker that is gone cannot answer: see below
                    connection = idle.pop()
                    connection.send_bytes(frames.of_request(request, self._shelves[connection]))

        employ()
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                request = busy.pop(connection)
                try:
                    content = connection.recv_bytes()
                except (EOFError, OSError):  # it ended before its answer, or in the middle of it
                    why = self._bury(connection, busy)
                    if request.client in unlucky:
                        yield Failure(request.client, f"{why}, the second one at this client")
                    else:
                        unlucky.add(request.client)
                        again.append(request)
                        left = sum(process.is_alive() for process in self._workers.values())
                        self._notify(f"{why}; {request.client.name} is asked again, workers left: {left}")
                else:
                    idle.append(connection)
                    employ()  # before anybody looks at the answer: no worker waits for the server
                    yield self._answer(content, request, self._shelves[connection])
            employ()

    def settle(self) -> None:
        self._kept.settle()

    def close(self) -> None:
        for connection in self._workers:
            connection.close()  # a worker ends when nobody is left to ask it
        end = time.monotonic() + ENDING
        for process in self._workers.values():
            process.join(timeout=max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()  # what it was doing is not waited for any more
                process.join()
        self._workers.clear()
        self._shelves.clear()

    def _answer(self, content: bytes, request: Request, shelf: Shelf) -> Answer | Failure:
        answer = frames.to_answer(content, request, self._federation, self._layout, shelf)
        if isinstance(answer, Answer) and answer.message == _DISK_FULL:  # it is ours, too
            raise Interrupted(f"{self._federation.private}: the disk is full; free some space and resume")
        if isinstance(answer, Answer) and answer.message == _UNKEPT:
            raise Interrupted(
                f"{request.client.name}: {Problem.UNKEPT.words}; {self.problems} says why, repair that and resume"
            )
        return answer

    def _bury(self, connection: Connection, busy: Iterable[Connection]) -> str:
        """How the worker ended. Its idle lanes are gone with it; the `busy` ones will be heard of."""
        process = self._workers[connection]
        process.join()
        for lane in [lane for lane, owner in self._workers.items() if owner is process and lane not in busy]:
            del self._workers[lane], self._shelves[lane]
        if not self._workers:
            raise Interrupted(
                f"the last worker process ended with code {process.exitcode}; use fewer --workers and resume"
            )
        return f"a worker process ended with code {process.exitcode}"


def _work(connections: Sequence[tuple[Connection, Shelf]], federation: Federation, device: str) -> None:
    """A process's life: its lanes answer requests until the other side is gone."""
    torch.set_num_threads(1)
    if len(connections) > 1:  # a network is traced for folding, which reaches into all that other threads call
        federation = replace(federation, acceleration=federation.acceleration.without(["folding"]))
    others = [threading.Thread(target=_lane, args=(*each, federation, device)) for each in connections[1:]]
    for each in others:
        each.start()
    _lane(*connections[0], federation, device)
    for each in others:
        each.join()


def _lane(connection: Connection, shelf: Shelf, federation: Federation, device: str) -> None:
    """One client after the other. What breaks a lane ends its process: nobody hears of the end of one thread."""
    try:
        stream = None if device.startswith("cpu") else torch.cuda.Stream(torch.device(device))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream) if stream else nullcontext():
            _serve(connection, shelf, ClientHost(federation, device))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _serve(connection: Connection, shelf: Shelf, host: ClientHost) -> None:
    while True:
        try:
            request = frames.to_request(connection.recv_bytes(), host.federation, host.backbone.layout, shelf)
        except (EOFError, OSError):  # between two requests, or in the middle of one
            return
        try:
            connection.send_bytes(host.answer(request, shelf))
        except (BrokenPipeError, ConnectionResetError):
            return
