"""The one door to a SuperLink: it lets clients through, and nobody else.

A SuperLink answers on one port to clients and to whoever wants to start runs or enrol keys, and asks the latter for no
name. So it listens on this machine alone, and the gate stands on the network: it knows the calls that a client makes,
counts what crosses, and refuses what is too large before anybody has it in memory.
"""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn

from personae.deployment.certs import public_key
from personae.errors import ConfigError

CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
KNOWN = "/personae/known"  # the gate's own: whether it would let this key through
KEY = "flwr-public-key"  # the header that tells who calls
LARGEST_CALL = 64 << 20  # bytes of one call; large messages come in pieces of a few megabytes
MARGIN = 1 << 20  # bytes of an answer that are none of its content: how Flower describes its pieces
PATIENCE = 600.0  # seconds that the SuperLink may take over a call
_OWN = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Traffic:
    """Bytes that crossed in the calls of one client."""

    down: int = 0
    up: int = 0
    message: int = 0  # of the answer that is on its way


class TooLarge(Exception):
    """More than may come."""


class Gate:
    """Stands at `host:port` with the server's certificate, and passes calls on to a SuperLink on this machine."""

    def __init__(self, host: str, port: int, certs: Path, clients: Mapping[str, Path], max_bytes: int) -> None:
        self.traffic = {name: Traffic() for name in clients}
        self._names = {public_key(path): name for name, path in clients.items()}
        self.upstream = 0  # the port of the SuperLink; another one after a restart
        self._max_bytes = max_bytes
        self._client = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=str(certs / "ca.crt")), timeout=PATIENCE
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                host=host,
                port=port,
                ssl_certfile=str(certs / "server.crt"),
                ssl_keyfile=str(certs / "server.key"),
                log_level="warning",
                interface="asgi3",
                ws="none",
                lifespan="off",
                access_log=False,
            )
        )
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._address = f"{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            self._thread.join(0.05)
        if not self._server.started:
            raise ConfigError(f"{self._address}: nothing can listen there; is the port taken, or the host not ours?")
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        with suppress(SystemExit):  # uvicorn's way to say that it cannot listen
            asyncio.run(self._server.serve())

    async def _app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in CALLS | {KNOWN}:
            return await _respond(send, 404)
        name = self._names.get(dict(scope["headers"]).get(KEY.encode(), b""))
        if name is None:
            return await _respond(send, 401)
        if scope["path"] == KNOWN:
            return await _respond(send, 204)
        traffic = self.traffic[name]
        try:
            body = await _body(receive)
            self._admit(traffic, scope["path"], len(body))
        except TooLarge:
            return await _respond(send, 413)
        except ValueError:
            return await _respond(send, 400)
        return await self._pass_on(traffic, scope, body, send)

    def _admit(self, traffic: Traffic, path: str, size: int) -> None:
        """A message is announced by `push-messages`, and then comes in pieces."""
        if path.endswith("/push-messages"):
            traffic.message = 0
        elif path.endswith("/push-object"):
            traffic.message += size
            if traffic.message > self._max_bytes + MARGIN:
                raise TooLarge

    async def _pass_on(self, traffic: Traffic, scope: dict[str, Any], body: bytes, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name not in _OWN]
        try:
            reply = await self._client.post(
                f"https://127.0.0.1:{self.upstream}{scope['path']}", content=body, headers=headers
            )
        except httpx.HTTPError:
            return await _respond(send, 503)  # the SuperLink is being started: come again
        content = reply.content
        traffic.up += len(body)
        traffic.down += len(content)
        kept = [(name, value) for name, value in reply.headers.raw if name.lower() not in _OWN | {b"content-encoding"}]
        return await _respond(send, reply.status_code, content, kept)


async def _body(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ValueError("it hung up")
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_CALL:
            raise TooLarge
        more = event.get("more_body", False)
    return b"".join(parts)


async def _respond(
    send: Send, status: int, content: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or []), *length]})
    await send({"type": "http.response.body", "body": content})
