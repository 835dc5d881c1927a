"""A client's connection to the gate of a server: requests come in, answers go out, in a call each.

Calls go through `http.client`, which reads a model in a few steps of C. With httpx, a model of 1 MB took 70 steps of
Python, and a third of the time that a client takes for a round.

What comes is data: a client runs the code that is installed, whatever a server sends. Many connections fit into one
process.
"""

import base64
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from personae.deployment.gate import ALIVE, ANSWER, ENTER, LEAVE, NEXT, NUMBER, SESSION
from personae.deployment.signature import Signer
from personae.files import Bytes
from personae.runtime.post import unpacked

BEAT = 10.0  # seconds between two signs of life
CALL = 60.0  # seconds in which nothing comes or goes; a gate holds a call for less
PATIENCE = 60.0  # seconds for which a call that does not get through is repeated
LEAVING = 2.0  # seconds for the last call
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LONGEST_TEXT = 200  # bytes of what a server says
_COME_AGAIN = (502, 503, 504)  # a server is being started, or ends


class Disconnected(Exception):
    """A connection is gone, in words for whoever reads the client's screen."""


@dataclass(frozen=True)
class Asked:
    """A request, with what the server tells about its run."""

    number: str
    told: bytes
    frame: Bytes


@dataclass(frozen=True)
class _Reply:
    status: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content[:_LONGEST_TEXT].decode(errors="replace")


class _Line:
    """Calls over a connection that stays open between them. Threads take turns, and any of them may cut it."""

    def __init__(self, server: str, trust: ssl.SSLContext, timeout: float = CALL) -> None:
        self._http = _through_proxy(server, trust, timeout) or http.client.HTTPSConnection(
            server, context=trust, timeout=timeout
        )
        self._calling, self._is_cut = threading.Lock(), False

    def post(self, path: str, content: bytes, headers: Mapping[str, str]) -> _Reply:
        try:
            return self._posted(path, content, headers)
        finally:
            if self._is_cut:
                self._close()

    def _posted(self, path: str, content: bytes, headers: Mapping[str, str]) -> _Reply:
        with self._calling:
            if self._is_cut:
                raise ConnectionAbortedError("this connection was cut")
            if self._http.sock is not None and _has_ended(self._http.sock):
                self._http.close()  # the server has, after a while of silence
            try:
                self._http.request("POST", path, content, headers)
                reply = self._http.getresponse()
                return _Reply(reply.status, reply.read())
            except (OSError, http.client.HTTPException):
                self._http.close()
                raise

    def cut(self) -> None:
        """Whoever waits for a reply does not any more."""
        self._is_cut = True
        with suppress(OSError):
            if (connected := self._http.sock) is not None:
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # that of TLS would do the same
        self._close()

    def _close(self) -> None:
        """Not under a call, which would lose what it reads with: whoever makes it closes when it ends."""
        if self._calling.acquire(blocking=False):
            self._http.close()
            self._calling.release()


def _through_proxy(server: str, trust: ssl.SSLContext, timeout: float) -> http.client.HTTPSConnection | None:
    """By way of the proxy that the environment names (`https_proxy`, `no_proxy`), which sees the server's name and TLS;
    None where it names none."""
    named = getproxies().get("https")
    if named is None or proxy_bypass(server):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    account = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
    allowed = {"Proxy-Authorization": f"Basic {base64.b64encode(account.encode()).decode()}"} if proxy.username else {}
    line = http.client.HTTPSConnection(proxy.hostname or "", proxy.port or 80, context=trust, timeout=timeout)
    line.set_tunnel(server, headers=allowed)
    return line


def _has_ended(connected: socket.socket) -> bool:
    """Nothing is on its way between two calls but an end."""
    waiting = select.poll()
    waiting.register(connected, select.POLLIN)
    return bool(waiting.poll(0))


class Connection:
    """One client at one server, from `enter` to `leave`. It may be another thread that leaves."""

    def __init__(self, server: str, trust: ssl.SSLContext, key: Path) -> None:
        self._server, self._trust, self._signer = server, trust, Signer(key)
        self._line = _Line(server, trust)
        self._over, self._session = threading.Event(), ""

    def enter(self) -> Self:
        """The server need not wait any more for what this client was asked before."""
        self._session = self._call(ENTER).text
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()
        return self

    def receive(self) -> Asked | None:
        """The next request; None where there was none for a while."""
        reply = self._call(NEXT)
        if reply.status == HTTPStatus.NO_CONTENT:
            return None
        try:
            head, (told, frame) = unpacked(reply.content)
            return Asked(str(head["number"]), bytes(told), frame)
        except (ValueError, KeyError) as error:
            raise Disconnected("the server sent what is no request") from error

    def answer(self, asked: Asked, content: bytes) -> None:
        """Unless nobody waits for it any more."""
        self._call(ANSWER, content, {NUMBER: asked.number})

    def leave(self) -> None:
        """As well as it can be done at once."""
        if not self._over.is_set():
            self._over.set()
            last = _Line(self._server, self._trust, LEAVING)
            with suppress(OSError, http.client.HTTPException):
                last.post(LEAVE, b"", self._headers())
            last.cut()
        self._line.cut()

    def _beat(self) -> None:
        """Over the connection that a client at work does not use: it stays open, and a server has one for each client.
        A call that is on its way is a sign of life, too.
        """
        while not self._over.wait(BEAT):
            with suppress(OSError, http.client.HTTPException):  # the thread that asks for requests finds out
                self._line.post(ALIVE, b"", self._headers())

    def _headers(self) -> dict[str, str]:
        return {**self._signer.headers(), SESSION: self._session}

    def _call(self, path: str, content: bytes = b"", also: Mapping[str, str] | None = None) -> _Reply:
        """A call, repeated for a while where the network or a server that is being started is in its way."""
        pause, end = _PAUSE, time.monotonic() + PATIENCE
        while True:
            try:
                reply = self._line.post(path, content, {**self._headers(), **(also or {})})
                if 200 <= reply.status < 300 or reply.status == HTTPStatus.GONE:
                    return reply
                reason = f"the server answered {reply.status}: {reply.text}"
                if reply.status not in _COME_AGAIN:
                    raise Disconnected(reason)
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() + pause > end or self._over.wait(pause):
                raise Disconnected(reason)
            pause = min(2 * pause, _LONGEST_PAUSE)
