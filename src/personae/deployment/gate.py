"""The one door to a server: it lets clients through, and nobody else.

A SuperLink answers on one port to clients and to whoever wants to start runs or enrol keys, and asks the latter for no
name. So it listens on this machine alone, and the gate stands on the network. It knows six calls. It looks at their
signatures before it reads any further, counts what crosses, and refuses what is too large, too slow or too much at a
time. A request and an answer are one call each, and nothing of them is looked at here: to Flower, they are bytes of
the gate's own messages (`runtime/node.py`).
"""

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from personae.deployment.bells import Bells
from personae.deployment.door import Visitors, doors, make_room
from personae.deployment.mailbox import Letter, Mailbox
from personae.deployment.signature import UNKNOWN, Enrolled
from personae.errors import ConfigError
from personae.progress import Notify, unheard
from personae.runtime.node import Node
from personae.runtime.post import Post, Return, Slip, Turn

KNOWN = "/personae/known"  # whether the gate would let this key through, and what the run is
ENTER = "/personae/enter"  # a client comes, and knows of no request
ALIVE = "/personae/alive"  # it is still there
NEXT = "/personae/next"  # its request, or nothing after a while
ANSWER = "/personae/answer"  # what it answers
LEAVE = "/personae/leave"
SESSION = "personae-session"  # the header of a call with what its client was told when it entered
NUMBER = "personae-request"  # the header of an answer with the number of its request
ANOTHER = "somebody has entered with this key since then"
STALL = 30.0  # seconds without a byte of a call that has begun
SAY_AGAIN = 60.0  # seconds until it is told again that a client is turned away
ENDING = 2  # seconds for calls that are on their way when the gate closes
HOLD = 20.0  # seconds for which a client that asks for a request is kept waiting until there is one
IDLE = 30  # seconds for which a connection may be silent between two calls
PART = 1 << 16  # bytes of a request that are read at a time; each connection has room for as many, ever after


@dataclass
class Traffic:
    """Bytes that crossed in the calls of one client."""

    down: int = 0
    up: int = 0
    held: int = 0  # of answers that are on their way


class Gate:
    """Stands at `host:port` with the server's certificate, between clients and a SuperLink on this machine.

    Requests and answers wait in the `post`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        certs: Path,
        clients: Mapping[str, Path],
        max_bytes: int,
        post: Post,
        notify: Notify = unheard,
        *,
        plan: str = "",
    ) -> None:
        self._plan = plan.encode()  # what clients are told before they decide to take part
        self._mail = Mailbox(clients, post)
        self.traffic = {name: Traffic() for name in clients}
        self._clients, self._max_bytes, self._notify = Enrolled.of(clients), max_bytes, notify
        self._visitors, self._said = Visitors(), dict[str, float]()
        self._host, self._port, self._over = host, port, False
        calls = {
            KNOWN: self._known,
            ENTER: self._enter,
            ALIVE: self._alive,
            NEXT: self._next,
            ANSWER: self._answer,
            LEAVE: self._leave,
        }
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=[Route(path, call, methods=["POST"]) for path, call in calls.items()]),
                http="h11",  # it has a limit for headers
                ssl_certfile=str(certs / "server.crt"),
                ssl_keyfile=str(certs / "server.key"),
                log_level="critical",  # strangers' broken calls, and clients that hang on at the end, are no news
                ws="none",
                lifespan="off",
                access_log=False,
                timeout_graceful_shutdown=ENDING,
                timeout_keep_alive=IDLE,
            )
        )
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    def __enter__(self) -> Self:
        make_room(len(self.traffic))
        try:
            self._doors = doors(self._host, self._port, self._visitors)
        except OSError as error:
            raise ConfigError(
                f"{self._host}:{self._port}: nothing can listen there; is the port taken, or the host not ours?"
            ) from error
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            self._thread.join(0.05)
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        with suppress(RuntimeError):  # it is over already
            self._loop.call_soon_threadsafe(self._mail.wake, *self.traffic)
        self._server.should_exit = True
        self._thread.join()

    @contextmanager
    def at(self, superlink: str, authority: Path, key: EllipticCurvePrivateKey, run: Path) -> Iterator[None]:
        """Work for whoever asks by way of this SuperLink; what another one has asked before is forgotten."""

        def turn(asked: Turn) -> Return:
            return asyncio.run_coroutine_threadsafe(self._mail.turn(asked), self._loop).result()

        self._loop.call_soon_threadsafe(self._mail.clear)
        trust = ssl.create_default_context(cafile=str(authority))
        with Node(superlink, trust, key, Bells.of_the_gate(run), turn):
            yield

    def _run(self) -> None:
        with suppress(SystemExit):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        watching = asyncio.ensure_future(self._mail.watch())
        await self._server.serve([*self._doors])
        watching.cancel()

    # -------------------------------------------------------------------------------------------------------- calls

    async def _known(self, request: Request) -> Response:
        self._caller(request)
        return Response(self._plan, 200 if self._plan else 204)

    async def _enter(self, request: Request) -> Response:
        return Response(self._mail.enter(self._caller(request)))

    async def _alive(self, request: Request) -> Response:
        self._mail.hear(self._member(request))
        return Response()

    async def _leave(self, request: Request) -> Response:
        self._mail.leave(self._member(request))
        return Response()

    async def _next(self, request: Request) -> Response:
        """A client that is gone is missed at once, and gets what it is asked when it is back."""
        name, end = self._member(request), time.monotonic() + HOLD
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise HTTPException(413)  # it would have to be kept
        await request.body()
        gone = asyncio.ensure_future(request.receive())  # after a call without content, nothing comes but its end
        gone.add_done_callback(lambda _: self._mail.wake(name))
        try:
            while (letter := await self._mail.letter(name, max(0.0, end - time.monotonic()))) is None:
                self._require_present(name, request)
                if gone.done():
                    self._mail.miss(name)
                    return Response(status_code=400)  # nobody is there to get it
                if self._over:
                    raise HTTPException(503)
                if time.monotonic() >= end:
                    return Response(status_code=204)
        finally:
            gone.cancel()
        return StreamingResponse(self._sent(name, letter), headers={"content-length": str(letter.size)})

    async def _sent(self, name: str, letter: Letter) -> AsyncIterator[bytes]:
        """In parts, each of which shows that the client is there."""
        yield letter.start
        for place in range(0, letter.body.size, PART):
            self._mail.hear(name)
            yield letter.body.read(place, PART)
        self.traffic[name].down += letter.size

    async def _answer(self, request: Request) -> Response:
        """One that somebody waits for. An answer that comes again, because its sender did not hear of us, is none."""
        name, number = self._member(request), request.headers.get(NUMBER, "")
        if not self._mail.awaits(name, number):
            return Response(status_code=200 if self._mail.has(name, number) else 410)
        traffic, slip = self.traffic[name], self._mail.new_slip()
        try:
            await self._read(name, request, slip)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to get it
        except _TooLargeError as error:
            self._mail.answer(name, number, f"its answer holds more than {self._max_bytes:,} bytes")
            raise HTTPException(413) from error
        finally:
            traffic.held -= slip.size
        traffic.up += slip.size
        self._mail.answer(name, number, slip)
        return Response()

    def _caller(self, request: Request) -> str:
        """The client whose call this is; who is turned away gets the reason, and so does whoever reads our log."""
        name = self._clients.caller(request.headers)
        if name is None:
            raise HTTPException(401, UNKNOWN)
        if (objection := self._clients.objection(name, request.headers)) is not None:
            now = time.monotonic()
            if now - self._said.get(name, -SAY_AGAIN) >= SAY_AGAIN:
                self._said[name] = now
                self._notify(f"a call of {name} was turned away: {objection}")
            raise HTTPException(401, objection)
        if request.client is not None:
            self._visitors.introduce(tuple(request.client), name)
        return name

    def _member(self, request: Request) -> str:
        """The client whose call this is, if it has entered and nobody has taken its place since then."""
        name = self._caller(request)
        self._require_present(name, request)
        return name

    def _require_present(self, name: str, request: Request) -> None:
        if not self._mail.is_present(name, request.headers.get(SESSION, "")):
            raise HTTPException(409, ANOTHER)

    async def _read(self, name: str, request: Request, slip: Slip) -> None:
        """An answer; not more of it than is allowed, and not for longer than something comes."""
        traffic, most = self.traffic[name], self._max_bytes
        if int(request.headers.get("content-length", 0)) > most:
            raise _TooLargeError
        try:
            async with asyncio.timeout(STALL) as limit:
                async for part in request.stream():
                    if slip.size + len(part) > most:
                        raise _TooLargeError
                    if traffic.held + len(part) > most:  # with its other calls
                        raise HTTPException(413)
                    slip.add(part)
                    traffic.held += len(part)
                    self._mail.hear(name)
                    limit.reschedule(asyncio.get_running_loop().time() + STALL)
        except TimeoutError as error:
            raise HTTPException(408) from error


class _TooLargeError(Exception):
    """An answer holds more than the server takes."""
