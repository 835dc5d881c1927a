"""The one door to a SuperLink: it lets clients through, and nobody else.

A SuperLink answers on one port to clients and to whoever wants to start runs or enrol keys, and asks the latter for no
name. So it listens on this machine alone, and the gate stands on the network: it knows the calls that a client makes,
looks at their signatures before it reads any further, counts what crosses, and refuses what is too large, too slow or
too much at a time before anybody has it in memory.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from personae.deployment.bells import ANSWERED, ASKED, Bell
from personae.deployment.door import Visitors, doors, make_room
from personae.deployment.signature import UNKNOWN, Enrolled
from personae.errors import ConfigError
from personae.progress import Notify, unheard

CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
KNOWN = "/personae/known"  # the gate's own: whether it would let this key through, and what the run is
LARGEST_CALL = 64 << 20  # bytes of a client's calls that are here together; large messages come in pieces of 5 MB
MARGIN = 1 << 20  # bytes of an answer that are none of its content: how Flower describes its pieces
STALL = 30.0  # seconds without a byte of a call that has begun
PATIENCE = 600.0  # seconds that the SuperLink may take over a call
SAY_AGAIN = 60.0  # seconds until it is told again that a client is turned away
ENDING = 2  # seconds for calls that are on their way when the gate closes
HOLD = 20.0  # seconds for which a client that asks for a request is kept waiting until there is one
LISTEN = 0.05  # seconds between two looks at whom the server asks
ATTENTION = 0.5  # seconds between two looks whether a client that is kept waiting is still there
IDLE = 30  # seconds for which a connection may be silent between two calls
_OWN = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})


@dataclass
class Traffic:
    """Bytes that crossed in the calls of one client."""

    down: int = 0
    up: int = 0
    message: int = 0  # of the answer that is on its way
    held: int = 0  # of calls that are here now
    answering: bool = False  # whether an answer was announced


class Waiting:
    """Clients that ask for a request wait here until the server's bell says that there is one for them.

    Its other bell rings when a client asks again after an answer: then all of that answer is there.
    """

    def __init__(self, clients: Iterable[str], run: Path) -> None:
        self._requests = dict.fromkeys(clients, 0)  # that are there, as far as is known
        self._rung = {name: asyncio.Event() for name in self._requests}
        (run / ASKED).touch()  # whoever asks rings where somebody listens
        self._bell, self._answered = Bell(run / ASKED), Bell(run / ANSWERED)
        self.over = False  # the gate closes: nobody waits any longer

    async def listen(self) -> None:
        while True:
            for name in self._bell.rung():
                self.ask(name)
            await asyncio.sleep(LISTEN)

    def ask(self, name: str) -> None:
        """There is, or may be, a request for this client."""
        if name in self._requests:
            self._requests[name] += 1
            self._rung[name].set()

    def answered(self, name: str) -> None:
        self._answered.ring(name)

    async def until_asked(self, name: str, request: Request) -> None:
        """Or for a while; ClientDisconnect where the client leaves, so that nobody gets its request in its place."""
        end = time.monotonic() + HOLD
        while not self._requests[name] and time.monotonic() < end and not self.over:
            self._rung[name].clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._rung[name].wait(), ATTENTION)
            if await request.is_disconnected():
                raise ClientDisconnect
        if self.over:
            raise HTTPException(503)
        self._requests[name] = max(0, self._requests[name] - 1)


class Gate:
    """Stands at `host:port` with the server's certificate, and passes calls on to a SuperLink on this machine."""

    def __init__(
        self,
        host: str,
        port: int,
        certs: Path,
        clients: Mapping[str, Path],
        max_bytes: int,
        notify: Notify = unheard,
        *,
        plan: str = "",
        run: Path | None = None,
    ) -> None:
        self._plan = plan.encode()  # what clients are told before they decide to take part
        self._waiting = Waiting(clients, run) if run else None  # without the folder of a run nobody is kept waiting
        self.traffic = {name: Traffic() for name in clients}
        self.upstream = 0  # the port of the SuperLink; another one after a restart
        self._clients, self._max_bytes, self._notify = Enrolled.of(clients), max_bytes, notify
        self._visitors, self._said = Visitors(), dict[str, float]()
        self._host, self._port = host, port
        self._upstream = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=str(certs / "ca.crt")), timeout=PATIENCE
        )
        routes = [Route(path, self._answer, methods=["POST"]) for path in [*CALLS, KNOWN]]
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes),
                http="h11",  # it has a limit for headers
                ssl_certfile=str(certs / "server.crt"),
                ssl_keyfile=str(certs / "server.key"),
                log_level="warning",
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
        if self._waiting is not None:
            self._waiting.over = True
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        with suppress(SystemExit):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        listening = asyncio.ensure_future(self._waiting.listen()) if self._waiting else None
        await self._server.serve([*self._doors])
        if listening is not None:
            listening.cancel()

    async def _answer(self, request: Request) -> Response:
        name = self._caller(request)
        if request.client is not None:
            self._visitors.introduce(tuple(request.client), name)
        if request.url.path == KNOWN:
            return Response(self._plan, 200 if self._plan else 204)
        traffic, body = self.traffic[name], bytearray()
        try:
            await _read(request, body, traffic)
            self._admit(traffic, request.url.path, len(body))
            if self._waiting is None:
                return await self._pass_on(traffic, request, bytes(body))
            return await self._in_time(self._waiting, name, request, bytes(body))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to get it
        finally:
            traffic.held -= len(body)

    def _caller(self, request: Request) -> str:
        """The client whose call this is; who is turned away gets the reason, and so does whoever reads our log."""
        name = self._clients.caller(request.headers)
        if name is None:
            raise HTTPException(401, UNKNOWN)
        if (objection := self._clients.objection(name, request.headers)) is None:
            return name
        now = time.monotonic()
        if now - self._said.get(name, -SAY_AGAIN) >= SAY_AGAIN:
            self._said[name] = now
            self._notify(f"a call of {name} was turned away: {objection}")
        raise HTTPException(401, objection)

    async def _in_time(self, waiting: Waiting, name: str, request: Request, body: bytes) -> Response:
        """Pass a call on when it is not in vain, and tell the server of answers."""
        traffic, call = self.traffic[name], request.url.path.rpartition("/")[2]
        if call == "pull-messages":
            if traffic.answering:
                traffic.answering = False
                waiting.answered(name)
            await waiting.until_asked(name, request)
        reply = await self._pass_on(traffic, request, body)
        if call == "push-messages":
            traffic.answering = True
        if call == "activate-node":  # what was asked before may still be there
            waiting.ask(name)
        return reply

    def _admit(self, traffic: Traffic, path: str, size: int) -> None:
        """A message is announced by `push-messages`, and then comes in pieces."""
        if path.endswith("/push-messages"):
            traffic.message = 0
        elif path.endswith("/push-object"):
            traffic.message += size
            if traffic.message > self._max_bytes + MARGIN:
                raise HTTPException(413)

    async def _pass_on(self, traffic: Traffic, request: Request, body: bytes) -> Response:
        headers = [(name, value) for name, value in request.headers.raw if name not in _OWN]
        address = f"https://127.0.0.1:{self.upstream}{request.url.path}"
        try:
            reply = await self._upstream.post(address, content=body, headers=headers)
        except httpx.HTTPError:
            return Response(status_code=503)  # the SuperLink is being started: come again
        traffic.up += len(body)
        traffic.down += len(reply.content)
        answer = Response(reply.content, reply.status_code)
        left_out = _OWN | {b"content-encoding"}
        answer.raw_headers += [(name, value) for name, value in reply.headers.raw if name.lower() not in left_out]
        return answer


async def _read(request: Request, body: bytearray, traffic: Traffic) -> None:
    """The body of a call; not more of it than may be here, and not for longer than something comes."""
    if int(request.headers.get("content-length", 0)) + traffic.held > LARGEST_CALL:
        raise HTTPException(413)
    try:
        async with asyncio.timeout(STALL) as limit:
            async for part in request.stream():
                body += part
                traffic.held += len(part)
                if traffic.held > LARGEST_CALL:
                    raise HTTPException(413)
                limit.reschedule(asyncio.get_running_loop().time() + STALL)
    except TimeoutError as error:
        raise HTTPException(408) from error
