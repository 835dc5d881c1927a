"""Clients on other machines, reached through Flower by a server. `node.py` is the other end."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Condition, Event, Thread
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from personae.runtime import frames
from personae.runtime.coding import EXACT, Coding
from personae.runtime.federation import Federation
from personae.runtime.problems import PROBLEMS
from personae.runtime.pulling import MALFORMED, Limits, within
from personae.runtime.transport import Answer, Failure, Request

FRAME = "frame"  # the record, and the array in it, that hold the bytes of an answer
TOLD, HEAD = "told", "head"  # what else is in the record of a request
FETCHERS = 8  # answers fetched at a time: they lie in memory together
TOGETHER = 32  # messages that are announced in one call
LOOKS = 20.0  # looks for an answer in a second at the most, whatever the number of clients
LISTEN = 0.02  # seconds between two looks at who has answered, which cost nothing
GATHER = 0.5  # seconds between two looks at who is connected
GRACE = 5.0  # seconds for which Flower remembers a message that nobody waits for any more: late is not lost
_ERRORS = {  # of Flower's own messages; the texts that come with them are not ours to repeat
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its program did not answer",
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


def wrapped(content: bytes) -> RecordDict:
    """An answer: bytes in an array, which Flower sends in pieces."""
    return RecordDict({FRAME: in_array(content)})


def unwrapped(record: RecordDict) -> bytes:
    """The bytes of an answer; KeyError or TypeError where it is none of ours."""
    content = record.array_records[FRAME][FRAME].data
    if not isinstance(content, bytes):
        raise TypeError("it holds no bytes")
    return content


def in_array(content: bytes) -> ArrayRecord:
    return ArrayRecord({FRAME: Array("uint8", (len(content),), FRAME, content)})


def asked_in(record: RecordDict) -> tuple[bytes, bytes]:
    """What a server tells about the run, and its request; KeyError or TypeError where it is none of ours."""
    told, head = (record.config_records[HEAD][name] for name in (TOLD, HEAD))
    if not isinstance(told, bytes) or not isinstance(head, bytes):
        raise TypeError("it holds no bytes")
    return told, head + unwrapped(record)


def asking(told: bytes, head: bytes, body: ArrayRecord) -> RecordDict:
    """A request: what is small and each client's own, and what may be large and the same for many."""
    return RecordDict({HEAD: ConfigRecord({TOLD: told, HEAD: head}), FRAME: body})


class Bells(Protocol):
    """Between the process of a server that asks and the one that clients are connected to."""

    def ask(self, client: str) -> None:
        """There is a request for this client."""

    def answered(self) -> Iterable[str]:
        """Clients that have answered since this was last called."""


class _Alike:
    """Messages that carry the same model. Flower knows an array by what it holds: this one is sent and kept once.

    Whether two requests are alike is known without a look at any number: they hold the same payloads.
    """

    def __init__(self, request: Request, told: bytes, coding: Coding) -> None:
        self._down, self._told = request.down, told
        self._body = in_array(frames.body_of(request, coding))
        self.requests: list[Request] = []
        self.messages: list[Message] = []

    def has_room_for(self, request: Request) -> bool:
        mine, others = self._down.fields(), request.down.fields()
        alike = type(self._down) is type(request.down) and mine.keys() == others.keys()
        return alike and len(self.messages) < TOGETHER and all(mine[name] is others[name] for name in mine)

    def add(self, request: Request, node: int, patience: float) -> None:
        """Nobody gets it after its time."""
        content = asking(self._told, frames.head_of(request), self._body)
        self.requests.append(request)
        self.messages.append(Message(content, node, MessageType.QUERY, ttl=patience))


class GridTransport:
    """The clients that a grid reaches, by the names under which the SuperLink knows their keys.

    An exchange ends after `deadline` seconds at the latest: who has not answered by then has failed, and what comes
    later is never fetched. Clients write down what they keep before they answer, so there is nothing to settle.

    Each request carries what clients are `told` about the run. An answer is looked for every `poll` seconds, and at
    once where `bells` say that it has come.
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
        told: bytes = b"",
        bells: Bells | None = None,
    ) -> None:
        self._federation, self._grid, self._coding = federation, grid, coding
        self._deadline, self._max_bytes, self._poll = deadline, max_bytes, poll
        self._told, self._bells = told, bells
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
            time.sleep(min(self._poll, GATHER))

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        nodes, waiting = self.connected(), dict[str, Request]()
        alike: _Alike | None = None
        for request in requests:
            if request.client.name not in nodes:
                yield Failure(request.client, "it is not connected")
                continue
            if alike is None or not alike.has_room_for(request):
                yield from self._push(alike, waiting)
                alike = _Alike(request, self._told, self._coding)
            alike.add(request, nodes[request.client.name], self._deadline + GRACE)
        yield from self._push(alike, waiting)
        for number, reply in self._replies({number: request.client.name for number, request in waiting.items()}):
            yield self._answer(waiting.pop(number), reply)
        for request in waiting.values():
            yield Failure(request.client, f"it did not answer within {self._deadline:g} seconds")

    def _push(self, alike: _Alike | None, waiting: dict[str, Request]) -> Iterator[Failure]:
        """Send what is together; whose message was not taken has failed."""
        if alike is None:
            return
        numbers = [*self._grid.push_messages(alike.messages)] or [""] * len(alike.requests)
        for number, request in zip(numbers, alike.requests, strict=True):
            if not number:
                yield Failure(request.client, "the SuperLink took no message for it")
                continue
            waiting[number] = request
            if self._bells is not None:
                self._bells.ask(request.client.name)

    def settle(self) -> None:
        """Clients on other machines have settled what they keep before they answer."""

    def close(self) -> None:
        """The grid belongs to whoever opened it."""

    def _replies(self, asked: Mapping[str, str]) -> Iterator[tuple[str, Found]]:
        """As they come, until the deadline, by the number of the message that each of them answers."""
        end = time.monotonic() + self._deadline
        fetching = _Fetching(self._grid, asked, self._max_bytes, end, self._poll, self._bells)
        try:
            for _ in asked:
                number, found = fetching.arrived.get(timeout=max(0.0, end - time.monotonic()))
                if isinstance(found, Exception) and not isinstance(found, MALFORMED):
                    raise found
                yield number, found
        except Empty:
            return
        finally:
            fetching.stop()

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

    `asked` are the numbers of the messages and the clients that they went to. Who has answered, by its bell, comes
    first. Flower waits for the rest of an answer that was announced. A thread which that happens to is replaced by
    another, so that clients who never send what they announced hold up nobody else.
    """

    def __init__(
        self, grid: Grid, asked: Mapping[str, str], largest: int, end: float, poll: float, bells: Bells | None
    ) -> None:
        self._grid, self._largest, self._end, self._bells = grid, largest, end, bells
        self._pause = max(poll, len(asked) / LOOKS)
        self.arrived, self._over, self._changed = Queue[tuple[str, Found]](1), Event(), Condition()
        self._numbers = {client: number for number, client in asked.items()}
        self._due = dict.fromkeys(asked, time.monotonic() + poll)  # when to look for which
        for _ in range(min(FETCHERS, len(asked))):
            self._employ(self._fetch)
        if bells is not None:
            self._employ(self._listen)

    def stop(self) -> None:
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def _employ(self, work: Callable[[], None]) -> None:
        Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        assert self._bells is not None
        while not self._over.wait(LISTEN):
            heard = [self._numbers[client] for client in self._bells.answered() if client in self._numbers]
            with self._changed:
                self._due |= {number: 0.0 for number in heard if number in self._due}
                self._changed.notify_all()

    def _next(self) -> str | None:
        """The message that is to be looked for, when its time has come; None where nothing is left to do."""
        with self._changed:
            while not self._over.is_set() and self._due:
                number = min(self._due, key=self._due.__getitem__)
                if (early := self._due[number] - time.monotonic()) <= 0:
                    del self._due[number]
                    return number
                self._changed.wait(early)
        return None

    def _fetch(self) -> None:
        replaced = Event()

        def waiting() -> None:
            if not replaced.is_set() and not self._over.is_set():
                replaced.set()
                self._employ(self._fetch)

        limits = Limits(self._largest, self._end, waiting)
        while not replaced.is_set() and (number := self._next()) is not None:
            if (found := self._found(number, limits)) is None:
                with self._changed:
                    self._due[number] = time.monotonic() + self._pause
                    self._changed.notify()
                continue
            while not self._over.is_set():
                with suppress(Full):
                    self.arrived.put((number, found), timeout=1)
                    break

    def _found(self, number: str, limits: Limits) -> Found | None:
        try:
            with within(limits):
                return next(iter(self._grid.pull_messages([number])), None)
        except Exception as error:  # it is for the main thread to raise, or to hold against a client
            return error
