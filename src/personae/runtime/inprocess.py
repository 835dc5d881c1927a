"""Clients on this machine: in this process, in worker processes of cores or GPUs, or side by side on one GPU."""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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
from personae.runtime.coding import ONE_MACHINE
from personae.runtime.federation import Federation
from personae.runtime.host import ClientHost
from personae.runtime.problems import PROBLEMS
from personae.runtime.store import PrivateStore
from personae.runtime.transport import TRAIN, Answer, Failure, Request, Transport

_DISK_FULL = Trouble(failure=FailureCode(Problem.DISK_FULL))
_UNKEPT = Trouble(failure=FailureCode(Problem.UNKEPT))
ENDING = 2.0  # seconds for worker processes to end by themselves
STREAMS = 8  # clients at once that fill a GPU with networks of the size that is trained on faces


def local_transport(
    federation: Federation, workers: int, device: str = "cpu", notify: Callable[[str], None] = unheard
) -> Transport:
    """Clients one after the other for one worker, else in so many processes, or streams of a GPU, at once.

    Several GPUs share the processes, and each has at least one. On a CPU the results are the same to the bit. `notify`
    hears of processes that end before their time.
    """
    devices = devices_of(device)
    if len(devices) > 1:
        return WorkerProcesses(federation, max(workers, len(devices)), notify, devices)
    if workers <= 1:
        return SameProcess(federation, device)
    return WorkerProcesses(federation, workers, notify) if device == "cpu" else Streams(federation, workers, device)


def devices_of(device: str) -> tuple[str, ...]:
    """The GPUs that `cuda` stands for: all that this process may see."""
    several = torch.cuda.device_count() if device == "cuda" else 1
    return (device,) if several <= 1 else tuple(f"{device}:{number}" for number in range(several))


class SameProcess:
    """One client after the other, with nothing in between."""

    def __init__(self, federation: Federation, device: str = "cpu") -> None:
        self._host = ClientHost(federation, device, durable=False)
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


class Streams:
    """Several clients at once on one GPU, each with a thread, a stream and a backbone: one alone would not fill it."""

    def __init__(self, federation: Federation, count: int, device: str) -> None:
        self._lanes = [_Lane(federation, device) for _ in range(count)]
        self._kept = _Kept(federation)
        self._threads = ThreadPoolExecutor(count)
        self.problems = str(federation.private / PROBLEMS)

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        busy = dict[Future[Answer], _Lane]()
        pending = self._kept.noting(requests)

        def employ(lane: _Lane) -> None:
            if (request := next(pending, None)) is not None:
                busy[self._threads.submit(lane.handle, request)] = lane

        for lane in self._lanes:
            employ(lane)
        while busy:
            for future in futures.wait(busy, return_when=futures.FIRST_COMPLETED).done:
                employ(busy.pop(future))  # before anybody looks at the answer: no lane waits for the server
                yield future.result()

    def settle(self) -> None:
        self._kept.settle()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class _Lane:
    def __init__(self, federation: Federation, device: str) -> None:
        self._host = ClientHost(federation, device, durable=False)
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def handle(self, request: Request) -> Answer:
        self._stream.wait_stream(torch.cuda.default_stream(self._device))  # there the server's model was made
        with torch.cuda.stream(self._stream):
            answer = self._host.handle(request)
        self._stream.synchronize()
        return answer


class WorkerProcesses:
    """A process per core, or some per GPU: requests and answers travel as bytes, and each has one client at a time.

    Workers are dealt over the devices in turn.
    A worker that ends (for lack of memory, say) is not replaced: its client is asked again by another one, and begins
    where it began, so nothing is lost. One that ends two of them in a round has failed.
    """

    def __init__(
        self,
        federation: Federation,
        workers: int,
        notify: Callable[[str], None] = unheard,
        devices: Sequence[str] = ("cpu",),
    ) -> None:
        self._federation, self._notify = federation, notify
        self.problems = str(federation.private / PROBLEMS)
        self._kept = _Kept(federation)
        self._layout = federation.backbone().layout
        context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, SpawnProcess] = {}
        for _, device in zip(range(workers), cycle(devices), strict=False):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, name=device, args=(theirs, federation, device), daemon=True)
            with deaf_children():
                process.start()
            theirs.close()
            self._workers[ours] = process

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        idle, busy = list(self._workers), dict[Connection, Request]()
        pending, again, unlucky = self._kept.noting(requests), list[Request](), set[ClientInfo]()

        def employ() -> None:
            while idle and (request := again.pop() if again else next(pending, None)) is not None:
                busy[idle[-1]] = request
                with suppress(BrokenPipeError, ConnectionResetError):  # a worker that is gone cannot answer: see below
                    idle.pop().send_bytes(frames.of_request(request, ONE_MACHINE))

        employ()
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                request = busy.pop(connection)
                try:
                    content = connection.recv_bytes()
                except (EOFError, OSError):  # it ended before its answer, or in the middle of it
                    why = self._bury(connection)
                    if request.client in unlucky:
                        yield Failure(request.client, f"{why}, the second one at this client")
                    else:
                        unlucky.add(request.client)
                        again.append(request)
                        left = len(self._workers)
                        self._notify(f"{why}; {request.client.name} is asked again, workers left: {left}")
                else:
                    idle.append(connection)
                    employ()  # before anybody looks at the answer: no worker waits for the server
                    yield self._answer(content, request)
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

    def _answer(self, content: bytes, request: Request) -> Answer | Failure:
        answer = frames.to_answer(content, request, self._federation, self._layout, ONE_MACHINE)
        if isinstance(answer, Answer) and answer.message == _DISK_FULL:  # it is ours, too
            raise Interrupted(f"{self._federation.private}: the disk is full; free some space and resume")
        if isinstance(answer, Answer) and answer.message == _UNKEPT:
            raise Interrupted(
                f"{request.client.name}: {Problem.UNKEPT.words}; {self.problems} says why, repair that and resume"
            )
        return answer

    def _bury(self, connection: Connection) -> str:
        """How the worker ended."""
        process = self._workers.pop(connection)
        process.join()
        if not self._workers:
            raise Interrupted(
                f"the last worker process ended with code {process.exitcode}; use fewer --workers and resume"
            )
        return f"a worker process ended with code {process.exitcode}"


def _work(connection: Connection, federation: Federation, device: str) -> None:
    """A worker's life: answer requests until the other side is gone."""
    torch.set_num_threads(1)
    host = ClientHost(federation, device, durable=False)
    while True:
        try:
            request = frames.to_request(connection.recv_bytes(), host.federation, host.backbone.layout, ONE_MACHINE)
        except (EOFError, OSError):  # between two requests, or in the middle of one
            return
        try:
            connection.send_bytes(host.answer(request, ONE_MACHINE))
        except (BrokenPipeError, ConnectionResetError):
            return
