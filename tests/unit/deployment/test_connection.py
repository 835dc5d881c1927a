"""A client's connection to a gate: what comes, what goes, and what happens where one of the two is gone."""

import http.client
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_gate import Guarded, eventually, guarding

from personae.deployment import connection as connections
from personae.deployment.connection import Connection, Disconnected, _Line
from personae.deployment.mailbox import INTERRUPTED
from personae.runtime.post import Asked, Turn


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setattr(connections, "_PAUSE", 0.01)
    with guarding(tmp_path) as made:
        yield made


def connect(guarded: Guarded, name: str = "ann") -> Connection:
    trust = ssl.create_default_context(cafile=str(guarded.folder / "ca.crt"))
    return Connection(f"127.0.0.1:{guarded.port}", trust, guarded.folder / name / "key")


def test_a_request_comes_with_what_is_told_and_its_answer_goes(guarded: Guarded) -> None:
    ann = connect(guarded).enter()
    guarded.turn("ann")
    asked = ann.receive()
    assert asked is not None
    assert (asked.told, asked.frame) == (b"the job", b"head,body")
    ann.answer(asked, b"what was asked for")
    assert guarded.turn() == {"for-ann": b"what was asked for"}
    ann.answer(asked, b"too late")  # nobody waits, and nobody minds
    assert guarded.turn() == {}
    ann.leave()
    ann.leave()  # once is enough
    assert guarded.turn("ann") == {"for-ann": "it is not connected"}


def test_who_was_killed_takes_its_place_again_and_nobody_waits_for_what_it_was_asked(guarded: Guarded) -> None:
    killed = connect(guarded).enter()
    guarded.turn("ann")
    assert killed.receive() is not None
    again = connect(guarded).enter()
    assert guarded.turn() == {"for-ann": INTERRUPTED}
    guarded.turn("ann", number="next")
    asked = again.receive()
    assert asked is not None
    assert asked.number == "next"
    again.leave()  # in the middle
    assert guarded.turn() == {"next": INTERRUPTED}
    killed.leave()


def test_another_thread_can_end_a_wait(guarded: Guarded) -> None:
    ann, ended = connect(guarded).enter(), list[Exception]()

    def wait() -> None:
        try:
            ann.receive()
        except Disconnected as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    ann.leave()
    thread.join(10)
    assert ended
    assert guarded.turn("ann") == {"for-ann": "it is not connected"}  # a call that was held is no sign of life


def test_a_connection_that_is_cut_while_a_reply_is_read_ends_in_one_way(guarded: Guarded) -> None:
    """Again and again, at other moments of the call: the reader hears of an end and of nothing else."""
    trust = ssl.create_default_context(cafile=str(guarded.folder / "ca.crt"))
    for moment in range(40):
        line, heard = _Line(f"127.0.0.1:{guarded.port}", trust), list[BaseException]()

        def read(line: _Line = line, heard: list[BaseException] = heard) -> None:
            try:
                while True:
                    line.post("/nothing", b"", {})
            except BaseException as error:
                heard.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.03 + moment / 5000)
        line.cut()
        thread.join(10)
        assert isinstance(heard[0], (OSError, http.client.HTTPException)), repr(heard[0])


def test_signs_of_life_keep_a_place(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BEAT", 0.05)
    ann = connect(guarded).enter()
    guarded.gate._mail.miss("ann")
    eventually(lambda: guarded.gate._mail._boxes["ann"].connected)
    assert len(guarded.gate._server.server_state.connections) == 1  # they need none of their own
    ann.leave()


class Replies(connections._Line):
    def __init__(self, *replies: int | bytes) -> None:
        self.replies = [*replies]

    def post(self, *_: object) -> connections._Reply:
        reply = self.replies.pop(0)
        return connections._Reply(200, reply) if isinstance(reply, bytes) else connections._Reply(reply, b"no")


def test_a_server_that_is_being_started_is_waited_for_and_a_refusal_is_told(guarded: Guarded) -> None:
    ann = connect(guarded)
    for replies, words in (((503, 502, 401), "the server answered 401: no"), ((b"garbage",), "what is no request")):
        ann._line = Replies(*replies)
        with pytest.raises(Disconnected, match=words):
            ann.receive()
    ann._line = Replies(503, 204)
    assert ann.receive() is None


def test_a_connection_is_kept_between_calls_and_made_again_where_the_server_has_closed_it(guarded: Guarded) -> None:
    ann = connect(guarded).enter()
    first = ann._line._http.sock
    ann.answer(connections.Asked("1", b"", b""), b"nobody waits for it")
    assert ann._line._http.sock is first
    for connection in [*guarded.gate._server.server_state.connections]:  # as after a long silence
        guarded.gate._loop.call_soon_threadsafe(connection.transport.close)  # type: ignore[union-attr]
    eventually(lambda: connections._has_ended(first))
    began = time.monotonic()
    guarded.turn("ann")
    assert ann.receive() is not None
    assert ann._line._http.sock is not first
    assert time.monotonic() - began < connections._PAUSE + 5
    ann.leave()


def test_a_large_request_comes_whole(guarded: Guarded) -> None:
    ann, body = connect(guarded).enter(), bytes(range(256)) * 20_000
    guarded.take(Turn(b"told", [Asked("1", "ann", b"head", guarded.post.slip(body).left())], 60.0))
    asked = ann.receive()
    assert asked is not None
    assert asked.frame == b"head" + body
    ann.answer(asked, body)
    assert guarded.turn() == {"1": body}
    ann.leave()


class Proxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that opens tunnels, and remembers for whom and how it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Tunnel)
        self.asked: list[tuple[str, str]] = []


class Tunnel(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        headers = dict(line.split(": ", 1) for line in iter(lambda: self.rfile.readline().decode().strip(), ""))
        self.server.asked.append((f"{method} {target}", headers.get("Proxy-Authorization", "")))
        host, _, port = target.partition(":")
        with socket.create_connection((host, int(port))) as beyond:
            self.wfile.write(b"HTTP/1.1 200 go on\r\n\r\n")
            threading.Thread(target=self.pour, args=(beyond, self.connection), daemon=True).start()
            self.pour(self.connection, beyond)

    @staticmethod
    def pour(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)


def test_a_proxy_of_the_environment_is_used_and_sees_only_a_tunnel(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy() as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://office:s%20t@127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.setenv("no_proxy", "")
        ann = connect(guarded).enter()
        guarded.turn("ann")
        asked = ann.receive()
        assert asked is not None
        assert asked.frame == b"head,body"
        ann.leave()
        assert {place for place, _ in proxy.asked} == {f"CONNECT 127.0.0.1:{guarded.port}"}
        assert {account for _, account in proxy.asked} == {"Basic b2ZmaWNlOnMgdA=="}  # office:s t
        used = len(proxy.asked)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        connect(guarded).enter().leave()
        assert len(proxy.asked) == used
        proxy.shutdown()
