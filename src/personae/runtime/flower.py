"""Clients on other machines, reached by a server through Flower and the gate. `node.py` is the gate's end."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from personae.errors import lacks_memory
from personae.runtime import frames
from personae.runtime.coding import EXACT, Coding
from personae.runtime.federation import Federation
from personae.runtime.post import Answered, Asked, Post, Return, Turn
from personae.runtime.problems import PROBLEMS
from personae.runtime.transport import Answer, Failure, Request

CONTENT = "content"  # the only record of a message, and its only entry
TOGETHER = 64 << 20  # bytes of requests, or of answers, that go together: more are dealt with while others come
LISTEN = 0.01  # seconds between two looks whether a bell has rung, which cost nothing
HOLD = 10.0  # seconds for which the gate keeps a turn without an answer
GATHER = 0.5  # seconds between two looks at who is connected
LIFETIME = 3600.0  # seconds after which Flower forgets a message
GATE_IS_GONE = "the gate does not answer"

__all__ = ["Grid", "GridTransport", "server_app"]

Main = Callable[[Grid, Mapping[str, Any]], None]


def server_app(main: Main) -> ServerApp:
    """A ServerApp that runs `main` with the grid and the configuration of the run."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        main(grid, context.run_config)

    return app


def wrapped(content: bytes) -> RecordDict:
    """Bytes as Flower sends them: in few objects, because each takes calls of its own."""
    return RecordDict({CONTENT: ConfigRecord({CONTENT: content})})


def unwrapped(record: RecordDict) -> bytes:
    content = record.config_records[CONTENT][CONTENT]
    assert isinstance(content, bytes), "only the gate and the server send messages"
    return content


class Bells(Protocol):
    """Between the process of a server that asks and its gate."""

    def ring(self) -> None:
        """There is something for the gate."""

    def rung(self) -> bool:
        """Whether there may be something from the gate since this was last called."""


class _Requests:
    """Requests that go together. What is the same for many clients is in there once.

    Whether two requests are alike is known without a look at any number: they hold the same payloads.
    """

    def __init__(self, coding: Coding, post: Post) -> None:
        self._coding, self._post = coding, post
        self._last: Request | None = None
        self._body = ""
        self.asked: list[Asked] = []
        self.size = 0

    def add(self, request: Request) -> str:
        if self._last is None or not _alike(request, self._last):
            self._last = request
            slip = self._post.slip(*frames.body_of(request, self._coding))
            self.size += slip.size
            self._body = slip.left()
        number = uuid.uuid4().hex
        self.asked.append(Asked(number, request.client.name, frames.head_of(request), self._body))
        return number


def _alike(one: Request, other: Request) -> bool:
    mine, others = one.down.fields(), other.down.fields()
    if type(one.down) is not type(other.down) or mine.keys() != others.keys():
        return False
    return all(mine[name] is others[name] for name in mine)


class GridTransport:
    """The clients behind the gate that a grid reaches.

    An exchange ends after `deadline` seconds at the latest: who has not answered by then has failed, and what comes
    later is never fetched. Clients write down what they keep before they answer, so there is nothing to settle.

    Each request carries what clients are `told` about the run. A return of the gate is looked for every `poll` seconds,
    and at once where `bells` say that it has come. What is large goes by the `post`.
    """

    def __init__(
        self,
        federation: Federation,
        grid: Grid,
        post: Post,
        *,
        deadline: float,
        coding: Coding = EXACT,
        max_bytes: int = 1 << 30,
        poll: float = 0.5,
        told: bytes = b"",
        bells: Bells | None = None,
    ) -> None:
        self._federation, self._grid, self._post, self._coding = federation, grid, post, coding
        self._deadline, self._max_bytes, self._poll = deadline, max_bytes, poll
        self._told, self._bells = told, bells
        self._layout = federation.backbone().layout
        self.problems = f"that client's own log, {PROBLEMS} in its --home"

    def connected(self) -> frozenset[str]:
        """The clients that are there now."""
        return frozenset(self._returned(self._send(Turn())).connected)

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
        """The next turn is on its way while the answers of the last one are looked at."""
        waiting, together = dict[str, Request](), self._requests()
        for request in requests:
            waiting[together.add(request)] = request
            if together.size >= TOGETHER:
                for asked, answered in self._heard(self._returned(self._send(self._turn(together))), waiting):
                    yield self._answer(asked, answered)
                together = self._requests()
        end = time.monotonic() + self._deadline
        sent = self._send(self._turn(together, end)) if waiting else ""
        while sent:
            heard, sent = self._heard(self._returned(sent), waiting), ""
            if waiting and time.monotonic() < end:
                sent = self._send(self._turn(self._requests(), end))
            for request, answered in heard:
                yield self._answer(request, answered)
        for request in waiting.values():
            yield Failure(request.client, f"it did not answer within {self._deadline:g} seconds")

    def settle(self) -> None:
        """Clients on other machines have settled what they keep before they answer."""

    def close(self) -> None:
        """The grid belongs to whoever opened it."""

    def _requests(self) -> _Requests:
        return _Requests(self._coding, self._post)

    def _turn(self, requests: _Requests, end: float | None = None) -> Turn:
        wait = 0.0 if end is None else max(0.0, min(HOLD, end - time.monotonic()))
        return Turn(self._told, requests.asked, self._deadline, wait)

    def _send(self, turn: Turn) -> str:
        """Gives the number of the message."""
        message = Message(wrapped(turn.packed()), self._gate, MessageType.QUERY, ttl=LIFETIME)
        numbers = [*self._grid.push_messages([message])]
        if not numbers or not numbers[0]:
            raise ConnectionError("the SuperLink took no message for the gate")
        if self._bells is not None:
            self._bells.ring()
        return numbers[0]

    @cached_property
    def _gate(self) -> int:
        """The only node of the SuperLink."""
        for node in self._grid.get_nodes():
            return node.node_id
        raise ConnectionError("the gate is not connected to the SuperLink")

    def _returned(self, number: str) -> Return:
        look = 0.0 if self._bells is None else time.monotonic() + self._poll
        while True:
            if time.monotonic() >= look or (self._bells is not None and self._bells.rung()):
                for reply in self._grid.pull_messages([number]):
                    if reply.has_error():
                        raise ConnectionError(GATE_IS_GONE)
                    return Return.parse(unwrapped(reply.content))
                look = time.monotonic() + self._poll
            time.sleep(min(LISTEN, self._poll))

    def _heard(self, returned: Return, waiting: dict[str, Request]) -> list[tuple[Request, Answered]]:
        """What somebody waits for, with what it answers; nobody waits for it any more then."""
        for each in returned.answered:
            if each.number not in waiting and each.slip:
                self._post.take(each.slip)
        return [(waiting.pop(each.number), each) for each in returned.answered if each.number in waiting]

    def _answer(self, request: Request, answered: Answered) -> Answer | Failure:
        if answered.failure:
            return Failure(request.client, answered.failure)
        slip = self._post.take(answered.slip)
        if slip.size > self._max_bytes:
            return Failure(request.client, f"its answer holds {slip.size:,} bytes, and {self._max_bytes:,} are allowed")
        try:
            content = slip.whole()
            return frames.to_answer(content, request, self._federation, self._layout, self._coding)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            return Failure(request.client, "its answer takes more memory than there is")
