"""A client's connection to the gate of a server: requests come in, answers go out, in a call each.

What comes is data: a client runs the code that is installed, whatever a server sends. Many connections fit into one
process.
"""

import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from personae.deployment.gate import ALIVE, ANSWER, ENTER, LEAVE, NEXT, NUMBER, SESSION
from personae.deployment.signature import signed
from personae.runtime.post import unpacked

BEAT = 10.0  # seconds between two signs of life
CALL = 60.0  # seconds in which nothing comes or goes; a gate holds a call for less
PATIENCE = 60.0  # seconds for which a call that does not get through is repeated
LEAVING = 2.0  # seconds for the last call
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_COME_AGAIN = (502, 503, 504)  # a server is being started, or ends


class Disconnected(Exception):
    """A connection is gone, in words for whoever reads the client's screen."""


@dataclass(frozen=True)
class Asked:
    """A request, with what the server tells about its run."""

    number: str
    told: bytes
    frame: bytes


class Connection:
    """One client at one server, from `enter` to `leave`. It may be another thread that leaves."""

    def __init__(self, server: str, trust: ssl.SSLContext, key: Path) -> None:
        self._key = key
        self._client = httpx.Client(base_url=f"https://{server}", verify=trust, timeout=CALL)
        self._over, self._session = threading.Event(), ""

    def enter(self) -> Self:
        """The server need not wait any more for what this client was asked before."""
        self._session = self._call(ENTER).text
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()
        return self

    def receive(self) -> Asked | None:
        """The next request; None where there was none for a while."""
        reply = self._call(NEXT)
        if reply.status_code == httpx.codes.NO_CONTENT:
            return None
        try:
            head, (told, frame) = unpacked(reply.content)
            return Asked(str(head["number"]), bytes(told), bytes(frame))
        except (ValueError, KeyError) as error:
            raise Disconnected("the server sent what is no request") from error

    def answer(self, asked: Asked, content: bytes) -> None:
        """Unless nobody waits for it any more."""
        self._call(ANSWER, content, {NUMBER: asked.number})

    def leave(self) -> None:
        """As well as it can be done at once."""
        if not self._over.is_set():
            self._over.set()
            with suppress(httpx.HTTPError, RuntimeError):
                self._client.post(LEAVE, headers=self._headers(), timeout=LEAVING)
            self._client.close()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(httpx.HTTPError, RuntimeError):  # the thread that asks for requests finds out
                self._client.post(ALIVE, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {**signed(self._key), SESSION: self._session}

    def _call(self, path: str, content: bytes = b"", also: Mapping[str, str] | None = None) -> httpx.Response:
        """A call, repeated for a while where the network or a server that is being started is in its way."""
        pause, end = _PAUSE, time.monotonic() + PATIENCE
        while True:
            try:
                reply = self._client.post(path, content=content, headers={**self._headers(), **(also or {})})
                if reply.is_success or reply.status_code == httpx.codes.GONE:
                    return reply
                reason = f"the server answered {reply.status_code}: {reply.text[:200]}"
                if reply.status_code not in _COME_AGAIN:
                    raise Disconnected(reason)
            except (httpx.HTTPError, RuntimeError) as error:  # httpx says so where another thread has closed it
                reason = str(error) or type(error).__name__
            if time.monotonic() + pause > end or self._over.wait(pause):
                raise Disconnected(reason)
            pause = min(2 * pause, _LONGEST_PAUSE)
