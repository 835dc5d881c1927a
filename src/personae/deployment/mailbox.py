"""What clients are asked, until they fetch it, and what they answer, until the server does.

All of it happens in the thread of one event loop. Requests and answers are slips, so memory does not grow with the
number of clients. What a server that was killed has left is removed before the next one asks.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from personae.core.message import Trouble
from personae.core.payload import FailureCode
from personae.core.problem import Problem
from personae.runtime import frames
from personae.runtime.flower import TOGETHER
from personae.runtime.post import Answered, Post, Return, Slip, Turn, prefix

LIFETIME = 30.0  # seconds without a sign of life after which a client is not connected any more
LOOK = 1.0  # seconds between two looks whether clients are still there
INTERRUPTED = frames.of_trouble(Trouble(failure=FailureCode(Problem.INTERRUPTED)))
NOT_CONNECTED, LOST = "it is not connected", "its connection was lost"


@dataclass(frozen=True)
class Letter:
    """A client's request, as it is sent: `start`, and after it the body, which others may get as well."""

    number: str
    start: bytes
    body: Slip
    until: float  # when nobody waits for its answer any more

    @property
    def size(self) -> int:
        return len(self.start) + self.body.size


@dataclass
class Box:
    """One client's."""

    session: str = field(default_factory=lambda: secrets.token_hex(8))  # whose box it is: the last that entered
    seen: float = -LIFETIME  # when it was last heard of
    letter: Letter | None = None  # what it is asked and has not answered
    answered: str = ""  # the number of the request that it has answered last
    rung: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def connected(self) -> bool:
        return time.monotonic() - self.seen < LIFETIME


class Mailbox:
    """A box for each client. `turn` is what the server sees of it; the rest is for the gate."""

    def __init__(self, clients: Iterable[str], post: Post) -> None:
        self._post = post
        self._boxes = {name: Box() for name in clients}
        self._answers: deque[tuple[str, Slip | str]] = deque()  # a request's number, with its answer or what went wrong
        self._come = asyncio.Event()

    async def turn(self, turn: Turn) -> Return:
        """Take requests, and give what answers there are; wait for all of them, or for as many as go together, because
        many answers in one return cost hardly more than one.
        """
        now = time.monotonic()
        bodies = {name: self._post.take(name) for name in {asked.body for asked in turn.asked}}
        for asked in turn.asked:
            box = self._boxes.get(asked.client)
            if box is None or not box.connected:
                self._put(asked.number, NOT_CONNECTED)
                continue
            body = bodies[asked.body]
            frame = len(asked.head) + body.size
            start = prefix({"number": asked.number}, [len(turn.told), frame]) + turn.told + asked.head
            box.letter = Letter(asked.number, start, body, now + turn.patience)
            box.rung.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(turn.wait):
                while self._at_work and self._size < TOGETHER:
                    self._come.clear()
                    await self._come.wait()
        connected = [name for name, box in self._boxes.items() if box.connected]
        return Return(connected, [*self._taken()])

    @property
    def _at_work(self) -> bool:
        return any(box.letter for box in self._boxes.values())

    @property
    def _size(self) -> int:
        """Bytes of answers that are here."""
        return sum(content.size for _, content in self._answers if isinstance(content, Slip))

    def clear(self) -> None:
        """Whoever asked is gone, and somebody else will ask."""
        for box in self._boxes.values():
            box.letter = None
        self._answers.clear()
        self._post.clear()

    async def watch(self) -> None:
        """For ever: give up clients that are not there any more, and what nobody waits for."""
        while True:
            await asyncio.sleep(LOOK)
            for box in self._boxes.values():
                if box.letter is not None and time.monotonic() > box.letter.until:
                    box.letter = None
                if box.letter is not None and not box.connected:
                    self._close(box, LOST)

    # ------------------------------------------------------------------------------------------ a client's own box

    def enter(self, client: str) -> str:
        """A client that comes again has forgotten what it was asked; gives the name of its session."""
        box = self._boxes[client]
        self._interrupt(box)
        box.session, box.seen = secrets.token_hex(8), time.monotonic()
        self.wake(client)
        return box.session

    def is_present(self, client: str, session: str) -> bool:
        """Whether nobody has come after this session."""
        return self._boxes[client].session == session

    def leave(self, client: str) -> None:
        """The session is over, so that no call of it that is still held is taken for a sign of life."""
        box = self._boxes[client]
        self._interrupt(box)
        box.session, box.seen = secrets.token_hex(8), -LIFETIME
        self.wake(client)

    def wake(self, *clients: str) -> None:
        """Let calls of theirs that wait for a request look around."""
        for client in clients:
            self._boxes[client].rung.set()

    def hear(self, client: str) -> None:
        """A sign of life."""
        self._boxes[client].seen = time.monotonic()

    def miss(self, client: str) -> None:
        """A client that waited for a request does not any more."""
        self._boxes[client].seen = -LIFETIME

    async def letter(self, client: str, patience: float) -> Letter | None:
        """What it is asked, as soon as there is something; the same again until it was answered. None if woken."""
        box = self._boxes[client]
        self.hear(client)
        if box.letter is None:
            box.rung.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(box.rung.wait(), patience)
        return box.letter

    def awaits(self, client: str, number: str) -> bool:
        """Whether this is the request that a client is to answer."""
        letter = self._boxes[client].letter
        return letter is not None and letter.number == number

    def has(self, client: str, number: str) -> bool:
        """Whether it has answered this request."""
        return self._boxes[client].answered == number

    def answer(self, client: str, number: str, content: Slip | str) -> None:
        """Its answer, or what is wrong with it."""
        if self.awaits(client, number):
            self._close(self._boxes[client], content)

    def new_slip(self) -> Slip:
        return self._post.slip()

    # ------------------------------------------------------------------------------------------------------ answers

    def _interrupt(self, box: Box) -> None:
        if box.letter is not None:
            self._close(box, self._post.slip(INTERRUPTED))

    def _close(self, box: Box, content: Slip | str) -> None:
        assert box.letter is not None
        self._put(box.letter.number, content)
        box.answered, box.letter = box.letter.number, None

    def _put(self, number: str, content: Slip | str) -> None:
        self._answers.append((number, content))
        self._come.set()

    def _taken(self) -> Iterator[Answered]:
        while self._answers:
            number, content = self._answers.popleft()
            yield Answered(number, failure=content) if isinstance(content, str) else Answered(number, content.left())
