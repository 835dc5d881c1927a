"""Clients on other machines, reached through Flower. Only `pulling.py` imports it besides."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from personae.runtime import frames
from personae.runtime.coding import EXACT, Coding
from personae.runtime.federation import Federation
from personae.runtime.problems import PROBLEMS
from personae.runtime.pulling import MALFORMED, Limits, within
from personae.runtime.transport import Answer, Failure, Request

FRAME = "frame"  # the record, and the array in it, that hold the bytes of a request or an answer
FETCHERS = 8  # answers fetched at a time: they lie in memory together
GRACE = 5.0  # seconds for which Flower remembers a message that nobody waits for any more: late is not lost
_ERRORS = {  # of Flower's own messages; the texts that come with them are not ours to repeat
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "the app of this run could not be loaded there",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its desk did not answer; supernode.log in its --home says more",
    ErrorCode.NODE_UNAVAILABLE: "its connection was lost",
}

__all__ = ["Grid", "GridTransport", "server_app"]

Found = Message | Exception
Main = Callable[[Grid, Mapping[str, Any]], None]


def server_app(main: Main) -> ServerApp:
    """A ServerApp that runs `main` with the grid and the configuration of the run."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        main(grid, context.run_config)

    return app


def message_to(node: int, content: bytes, patience: float) -> Message:
    """Bytes for a node, in an array, which Flower sends in chunks; nobody gets it after its time."""
    return Message(wrapped(content), node, MessageType.QUERY, ttl=patience)


def wrapped(content: bytes) -> RecordDict:
    return RecordDict({FRAME: ArrayRecord({FRAME: Array("uint8", (len(content),), FRAME, content)})})


def unwrapped(record: RecordDict) -> bytes:
    """The bytes in a message; KeyError or TypeError where it is none of ours."""
    content = record.array_records[FRAME][FRAME].data
    if not isinstance(content, bytes):
        raise TypeError("its answer holds no bytes")
    return content


class GridTransport:
    """The clients that a grid reaches, by the names under which the SuperLink knows their keys.

    An exchange ends after `deadline` seconds at the latest: who has not answered by then has failed, and what comes
    later is never fetched. Clients write down what they keep before they answer, so there is nothing to settle.
    """

    def __init__(
        self,
        federation: Federation,
        grid: Grid,
        *,
        deadline: float,
        coding: Coding = EXACT,
        max_bytes: int = 1 << 30,
        poll: float = 0.5,
    ) -> None:
        self._federation, self._grid, self._coding = federation, grid, coding
        self._deadline, self._max_bytes, self._poll = deadline, max_bytes, poll
        self._layout = federation.backbone().layout
        self.problems = f"that client's own log, {PROBLEMS} in its --home"

    def connected(self) -> dict[str, int]:
        """Name -> node of the clients that are there now."""
        return {node.name: node.node_id for node in self._grid.get_nodes()}

    def gather(self, clients: Iterable[str], patience: float) -> list[str]:
        """Wait for these clients, for so many seconds; gives those that did not come."""
        expected, end = list(clients), time.monotonic() + patience
        while True:
            there = self.connected()
            missing = [name for name in expected if name not in there]
            if not missing or time.monotonic() >= end:
                return missing
            time.sleep(self._poll)

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        nodes, waiting = self.connected(), dict[str, Request]()
        for request in requests:
            if request.client.name not in nodes:
                yield Failure(request.client, "it is not connected")
                continue
            content = frames.of_request(request, self._coding)
            message = message_to(nodes[request.client.name], content, self._deadline + GRACE)
            accepted = [number for number in self._grid.push_messages([message]) if number]
            if not accepted:
                yield Failure(request.client, "the SuperLink took no message for it")
            waiting |= dict.fromkeys(accepted, request)
        for number, reply in self._replies(list(waiting)):
            yield self._answer(waiting.pop(number), reply)
        for request in waiting.values():
            yield Failure(request.client, f"it did not answer within {self._deadline:g} seconds")

    def settle(self) -> None:
        """Clients on other machines have settled what they keep before they answer."""

    def close(self) -> None:
        """The grid belongs to whoever opened it."""

    def _replies(self, asked: Sequence[str]) -> Iterator[tuple[str, Found]]:
        """As they come, until the deadline, by the number of the message that each of them answers."""
        fetching = _Fetching(self._grid, asked, self._max_bytes, time.monotonic() + self._deadline, self._poll)
        try:
            for _ in asked:
                number, found = fetching.arrived.get(timeout=max(0.0, fetching.end - time.monotonic()))
                if isinstance(found, Exception) and not isinstance(found, MALFORMED):
                    raise found
                yield number, found
        except Empty:
            return
        finally:
            fetching.over.set()

    def _answer(self, request: Request, reply: Found) -> Answer | Failure:
        if isinstance(reply, MemoryError):
            return Failure(request.client, "its answer takes more memory than there is")
        if isinstance(reply, Exception):
            return Failure(request.client, "its answer cannot be read")  # the error may repeat what the client chose
        if reply.has_error():
            return Failure(request.client, _ERRORS.get(reply.error.code, "Flower did not get an answer from it"))
        try:
            content = unwrapped(reply.content)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Failure(request.client, "its answer cannot be read")
        if len(content) > self._max_bytes:
            size = f"{len(content):,} bytes, and {self._max_bytes:,} are allowed"
            return Failure(request.client, f"its answer holds {size}")
        try:
            return frames.to_answer(content, request, self._federation, self._layout, self._coding)
        except MemoryError as error:
            return self._answer(request, error)


class _Fetching:
    """Threads that ask for one message after the other, again and again, until each has come or nobody waits any more.

    Flower waits for the rest of an answer that was announced. A thread which that happens to is replaced by another, so
    that clients who never send what they announced hold up nobody else.
    """

    def __init__(self, grid: Grid, asked: Sequence[str], largest: int, end: float, poll: float) -> None:
        self._grid, self._largest, self.end = grid, largest, end
        self.arrived, self.over = Queue[tuple[str, Found]](1), Event()
        self._turns = SimpleQueue[str]()
        for number in asked:
            self._turns.put(number)
        threads = min(FETCHERS, len(asked))
        self._pause = poll * threads / max(1, len(asked))
        for _ in range(threads):
            self._employ()

    def _employ(self) -> None:
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        replaced = Event()

        def waiting() -> None:
            if not replaced.is_set() and not self.over.is_set():
                replaced.set()
                self._employ()

        limits = Limits(self._largest, self.end, waiting)
        while not self.over.is_set() and not replaced.is_set():
            try:
                number = self._turns.get_nowait()
            except Empty:
                return
            if (found := self._found(number, limits)) is None:
                self.over.wait(self._pause)
                self._turns.put(number)
                continue
            while not self.over.is_set():
                with suppress(Full):
                    self.arrived.put((number, found), timeout=1)
                    break

    def _found(self, number: str, limits: Limits) -> Found | None:
        try:
            with within(limits):
                return next(iter(self._grid.pull_messages([number])), None)
        except Exception as error:  # it is for the main thread to raise, or to hold against a client
            return error
