"""The gate: whose calls pass, how much of them, how slowly, and how many connections there may be."""

import asyncio
import base64
import http.client
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from personae.deployment import door
from personae.deployment import gate as gates
from personae.deployment.certs import enrolled, make_certificates, private_key
from personae.deployment.consent import ALL, digest_of
from personae.deployment.gate import ALIVE, ANSWER, ENTER, KNOWN, LEAVE, NEXT, NUMBER, SESSION, Gate
from personae.deployment.job import Job
from personae.deployment.join import Member, _obstacle, _UnknownPlan, join
from personae.deployment.mailbox import INTERRUPTED
from personae.deployment.processes import free_port
from personae.deployment.signature import SIGNATURE, TIME, Enrolled, signed
from personae.errors import ConfigError, DataError, Refused
from personae.experiment.execution import Execution
from personae.runtime.post import Asked, Post, Turn, unpacked


@dataclass
class Guarded:
    """A gate, and how one calls."""

    gate: Gate
    port: int
    folder: Path
    said: list[str]
    post: Post

    def headers(self, name: str = "ann", number: str = "") -> dict[str, str]:
        session = self.gate._mail._boxes[name].session
        return {**signed(self.folder / name / "key"), SESSION: session, NUMBER: number}

    def connection(self) -> http.client.HTTPSConnection:
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=trust)

    def call(self, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = self.connection()
        try:
            connection.request("POST", path, body, self.headers() if headers is None else headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def answer(self, number: str, body: Any, name: str = "ann") -> int:
        return self.call(ANSWER, body, self.headers(name, number))[0]

    def turn(self, *clients: str, number: str = "", wait: float = 0.0) -> dict[str, bytes | str]:
        """As the process that asks sees it."""
        body = self.post.slip(b"body").left() if clients else ""
        asked = [Asked(number or f"for-{name}", name, b"head,", body) for name in clients]
        return self.take(Turn(b"the job", asked, 60.0, wait))

    def take(self, turn: Turn) -> dict[str, bytes | str]:
        returned = asyncio.run_coroutine_threadsafe(self.gate._mail.turn(turn), self.gate._loop).result(60)
        return {each.number: each.failure or self.post.take(each.slip).whole() for each in returned.answered}

    def ask(self, number: str = "for-ann", name: str = "ann") -> None:
        assert self.call(ENTER, headers=self.headers(name))[0] == 200
        self.turn(name, number=number)


@contextmanager
def guarding(folder: Path, max_bytes: int = 1 << 30) -> Iterator[Guarded]:
    make_certificates(folder, [], ["ann", "bob"])
    server, port, said = folder / "server", free_port(), list[str]()
    post = Post(folder / "post")
    with Gate("127.0.0.1", port, server, enrolled(server), max_bytes, post, said.append) as gate:
        yield Guarded(gate, port, folder, said, post)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with guarding(tmp_path) as made:
        yield made


def eventually(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_request_and_its_answer_are_a_call_each_and_are_counted(guarded: Guarded) -> None:
    guarded.ask()
    status, content = guarded.call(NEXT)
    head, (told, frame) = unpacked(content)
    assert (status, head, bytes(told), bytes(frame)) == (200, {"number": "for-ann"}, b"the job", b"head,body")
    assert guarded.answer("for-bob", b"hello") == 410  # nobody waits for it
    assert guarded.answer("for-ann", b"hello", "bob") == 410  # it is none of bob's
    assert guarded.answer("for-ann", b"hello") == 200
    assert guarded.answer("for-ann", b"hello again") == 200  # its sender did not hear of us
    assert guarded.turn() == {"for-ann": b"hello"}
    assert (guarded.gate.traffic["ann"].up, guarded.gate.traffic["ann"].down) == (5, len(content))


def test_nothing_else_is_answered(guarded: Guarded) -> None:
    """Whoever could start runs or enrol keys could run anything on the server."""
    for path in (
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/fleet/register-node",
        "/v1/fleet/pull-messages",
        "/v1/runtime/x",
        "/",
        "/personae/../v1/control/start-run",
    ):
        assert guarded.call(path)[0] == 404


def test_who_enters_takes_the_place_of_whoever_had_the_same_key(guarded: Guarded) -> None:
    guarded.ask()
    former = guarded.headers(number="for-ann")
    assert guarded.call(ENTER)[0] == 200
    for path in (ALIVE, NEXT, ANSWER, LEAVE):
        assert guarded.call(path, b"", former) == (409, gates.ANOTHER.encode())
    assert guarded.turn() == {"for-ann": INTERRUPTED}
    assert guarded.call(ALIVE)[0] == 200


def in_the_background(call: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    threading.Thread(target=lambda: found.append(call()), daemon=True).start()
    return found


def test_who_asks_for_a_request_waits_until_there_is_one(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.call(ENTER)
    found = in_the_background(lambda: guarded.call(NEXT))
    time.sleep(0.3)
    assert not found
    guarded.turn("ann")
    eventually(lambda: bool(found))
    assert found[0][0] == 200
    monkeypatch.setattr(gates, "HOLD", 0.1)
    assert guarded.call(NEXT, headers=guarded.headers("bob")) == (204, b"")


def test_a_client_that_waited_and_is_gone_is_missed_at_once(guarded: Guarded) -> None:
    guarded.call(ENTER)
    connection = guarded.connection()
    connection.request("POST", NEXT, b"", guarded.headers())
    time.sleep(0.2)
    connection.sock.shutdown(socket.SHUT_RDWR)  # as the system does for a process that was killed
    connection.close()
    eventually(lambda: not guarded.gate._mail._boxes["ann"].connected)
    assert guarded.turn("ann") == {"for-ann": "it is not connected"}
    guarded.call(ALIVE)
    assert guarded.turn("ann") == {}
    assert guarded.call(LEAVE)[0] == 200
    assert guarded.turn() == {"for-ann": INTERRUPTED}


@pytest.mark.parametrize("body", [b"x", iter([b"x" * 1000] * 1000)], ids=["a byte", "parts"])
def test_who_asks_for_a_request_sends_nothing_that_would_have_to_be_kept(guarded: Guarded, body: Any) -> None:
    guarded.ask()
    with suppress(ConnectionError):  # the gate does not wait for the rest
        assert guarded.call(NEXT, body)[0] == 413
    assert guarded.call(NEXT)[0] == 200


def test_a_call_that_is_held_ends_when_its_place_is_taken_or_the_gate_closes(tmp_path: Path) -> None:
    with guarding(tmp_path) as guarded:
        guarded.call(ENTER)
        former = in_the_background(lambda: guarded.call(NEXT))
        eventually(lambda: bool(waiting(guarded)))
        guarded.call(ENTER)
        eventually(lambda: bool(former))
        assert former == [(409, gates.ANOTHER.encode())]
        last = in_the_background(lambda: guarded.call(NEXT))
        eventually(lambda: bool(waiting(guarded)))
    eventually(lambda: bool(last))
    assert last[0][0] == 503


def waiting(guarded: Guarded) -> Any:
    """Calls of ann's that are held."""
    return guarded.gate._mail._boxes["ann"].rung._waiters


def test_a_call_that_is_held_costs_its_signature_once(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    objection = Enrolled.objection
    monkeypatch.setattr(Enrolled, "objection", lambda *a: (looked.append(a[1]), objection(*a))[1])
    monkeypatch.setattr(gates, "HOLD", 1.5)
    guarded.call(ENTER)
    assert guarded.call(NEXT)[0] == 204
    assert looked == ["ann", "ann"]


def test_who_is_known_is_told_the_plan_and_nobody_else(guarded: Guarded, tmp_path: Path) -> None:
    make_certificates(tmp_path / "elsewhere", [], ["eve"])
    heard: list[bytes] = []
    guarded.gate._plan = b"the plan"
    place = "127.0.0.1", guarded.port, guarded.folder / "ca.crt"
    assert _obstacle(*place, guarded.folder / "ann" / "key", heard.append) is None
    assert heard == [b"the plan"]
    assert _obstacle(*place, tmp_path / "elsewhere" / "eve" / "key", heard.append) is not None
    assert heard == [b"the plan"]


def test_nothing_is_sent_before_the_plan_is_accepted(guarded: Guarded, tmp_path: Path) -> None:
    """Without a terminal `join` ends with the line to use; whoever says no ends it, too."""
    job = Job("a1", {"name": "x", "stages": [{"name": "s", "algorithm": {"name": "fedpe"}}]})
    guarded.gate._plan = job.text().encode()
    server, certs = f"127.0.0.1:{guarded.port}", guarded.folder / "ann"
    member = Member(data=tmp_path, home=tmp_path / "home")
    with pytest.raises(ConfigError, match=f"join with --accept {digest_of(job)}"):
        join(server, member, certs)
    with pytest.raises(Refused, match="was not accepted; nothing was sent"):
        join(server, replace(member, ask=lambda: False), certs)


def test_what_is_missing_at_a_client_ends_it_before_it_connects(guarded: Guarded, tmp_path: Path) -> None:
    server, certs = f"127.0.0.1:{guarded.port}", guarded.folder / "ann"
    faces = tmp_path / "faces" / "somebody"
    faces.mkdir(parents=True)
    (faces / "1.png").write_bytes(b"no picture")
    member = Member(
        data=tmp_path / "faces",
        home=tmp_path / "home",
        accept=frozenset({ALL}),
        execution=Execution(cache=tmp_path / "cache"),
    )
    stage = {"name": "s", "algorithm": {"name": "fedfr"}}
    for plan, error, words in (
        (
            {"data": {"public": {"source": "/srv/public"}}, "stages": [stage]},
            ConfigError,
            "give their place with --public",
        ),
        ({"stages": [{"name": "s", "algorithm": {"name": "fedpe"}}]}, DataError, r"somebody.1\.png"),
    ):
        guarded.gate._plan = Job("a1", {"name": "x", **plan}).text().encode()
        with pytest.raises(error, match=words):
            join(server, member, certs)


def test_a_plan_that_comes_with_a_request_is_asked_about(tmp_path: Path) -> None:
    """A server may begin another run while a client is connected: the desk refuses, and the person is asked."""
    jobs = [Job(name, {"name": "x", "stages": [{"name": "s", "algorithm": {"name": "fedpe"}}]}) for name in ("a", "b")]
    answers = [True, False]
    member = Member(data=tmp_path / "none", home=tmp_path / "home", ask=lambda: answers.pop(0))
    unknown = _UnknownPlan(member, member.consent("hub:1"))
    unknown.heard(jobs[0].text().encode())
    with pytest.raises(DataError, match="none"):  # there are no faces here, and that is looked at after the plan
        unknown.host(jobs[0])
    assert unknown.job is None
    with pytest.raises(Refused, match="which was not accepted here"):
        unknown.host(jobs[1])
    assert unknown.job == jobs[1]
    with pytest.raises(Refused, match="was not accepted; nothing was sent"):
        unknown.heard(b"")
    assert not answers


def test_a_public_key_is_no_proof(guarded: Guarded, tmp_path: Path) -> None:
    """It is public: whoever knows it could use up what its client may send."""
    make_certificates(tmp_path / "elsewhere", [], ["eve"])
    guarded.ask()
    own, eve = guarded.headers(number="for-ann"), signed(tmp_path / "elsewhere" / "eve" / "key")
    strange = [
        {},
        eve,
        {**own, SIGNATURE: eve[SIGNATURE]},
        {**own, TIME: guarded.headers()[TIME]},  # signed at another time
        {**own, TIME: "yesterday"},
        {name: value for name, value in own.items() if name != SIGNATURE},
        {**own, SIGNATURE: "no base 64"},
    ]
    for headers in strange:
        for path in (KNOWN, ENTER, ALIVE, NEXT, ANSWER, LEAVE):
            assert guarded.call(path, bytes(10), headers)[0] == 401
    assert guarded.turn() == {}
    assert guarded.gate.traffic["ann"].up == 0
    assert guarded.said == ["a call of ann was turned away: its call is not signed with its key"]  # told once a minute


@pytest.mark.parametrize(("seconds", "words"), [(10, "10 seconds ahead of"), (-600, "600 seconds behind")])
def test_a_wrong_clock_is_told_on_both_sides(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, seconds: int, words: str
) -> None:
    key = guarded.folder / "ann" / "key"
    assert _obstacle("127.0.0.1", guarded.port, guarded.folder / "ca.crt", key) is None
    when = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    proof = private_key(key).sign(when.encode(), ec.ECDSA(hashes.SHA256()))
    wrong = {**signed(key), TIME: when, SIGNATURE: base64.b64encode(proof).decode()}
    monkeypatch.setattr("personae.deployment.join.signed", lambda _: wrong)
    complaint = f"its clock is {words} the server's; set both by a time server"
    said = _obstacle("127.0.0.1", guarded.port, guarded.folder / "ca.crt", key)
    assert said == f"the server turned this client away: {complaint}"
    assert guarded.said == [f"a call of ann was turned away: {complaint}"]


def test_an_answer_that_is_too_large_is_stopped_and_fails_its_client_at_once(tmp_path: Path) -> None:
    with guarding(tmp_path, max_bytes=6000) as guarded:
        for number, body in enumerate(
            (bytes(6001), iter([bytes(2000)] * 4))
        ):  # of a length that is told before, or not
            guarded.ask(str(number))
            assert guarded.answer(str(number), body) == 413
            assert guarded.turn() == {str(number): "its answer holds more than 6,000 bytes"}
        guarded.ask("2")
        assert guarded.answer("2", bytes(6000)) == 200
        assert guarded.turn() == {"2": bytes(6000)}
        assert guarded.gate.traffic["ann"].held == 0


def half_a_call(guarded: Guarded, name: str = "ann", size: int = 3000) -> http.client.HTTPSConnection:
    connection = guarded.connection()
    connection.putrequest("POST", ANSWER)
    for header, value in {**guarded.headers(name, f"for-{name}"), "content-length": str(2 * size)}.items():
        connection.putheader(header, value)
    connection.endheaders(bytes(size))
    return connection


def test_answers_that_stop_half_way_take_a_share_of_the_disk_and_give_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "STALL", 1.0)
    with guarding(tmp_path, max_bytes=8000) as guarded:
        guarded.ask()
        guarded.ask("for-bob", "bob")
        held = guarded.gate.traffic["ann"]
        halves = [half_a_call(guarded), half_a_call(guarded)]
        eventually(lambda: held.held == 6000)
        halves.append(half_a_call(guarded))  # that is too much for one client
        assert halves[2].getresponse().status == 413
        assert guarded.answer("for-bob", b"x", "bob") == 200  # whatever ann does
        assert [half.getresponse().status for half in halves[:2]] == [408, 408]
        eventually(lambda: held.held == 0)
        halves.append(half_a_call(guarded))
        eventually(lambda: held.held == 3000)
        halves[-1].sock.shutdown(socket.SHUT_RDWR)  # it hangs up
        eventually(lambda: held.held == 0)
        assert guarded.answer("for-ann", b"x") == 200  # it may still answer
        assert guarded.turn() == {"for-bob": b"x", "for-ann": b"x"}
        for half in halves:
            half.close()


def closed(connection: socket.socket) -> bool:
    connection.settimeout(30)
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_strangers_are_let_go_and_never_fill_the_process(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those who say nothing at all nor those who stop after a handshake or half a header."""
    monkeypatch.setattr(door, "STRANGERS", 20)
    before = open_files()
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", guarded.port))) for _ in range(100)]
        assert guarded.call(ALIVE)[0] == 200
        assert all(closed(each) for each in idle[:80])
        eventually(lambda: open_files() <= before + 100 + 25)
        assert guarded.call(ALIVE)[0] == 200


CROWD = """
import socket, sys
crowd = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(100)]
crowd[0].settimeout(30)
print(crowd[0].recv(1), flush=True)
sys.stdin.read()
"""


def test_where_no_files_are_left_strangers_go_and_the_gate_lives_on(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from another process, so that only their ends at the gate count."""
    monkeypatch.setattr(door, "INTRODUCTION", 600)
    assert guarded.call(ALIVE)[0] == 200
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-c", CROWD, str(guarded.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdout is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 40, limits[1]))
        try:
            assert crowd.stdout.readline() == b"b''\n"  # the gate has hung up on the first
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert guarded.call(ALIVE)[0] == 200  # with the others still there
        crowd.communicate()


def test_who_does_not_say_in_time_who_it_is_is_let_go(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "INTRODUCTION", 0.5)
    trust = ssl.create_default_context(cafile=str(guarded.folder / "ca.crt"))
    with socket.create_connection(("127.0.0.1", guarded.port)) as silent:
        assert closed(silent)
    with socket.create_connection(("127.0.0.1", guarded.port)) as plain:
        secure = trust.wrap_socket(plain, server_hostname="127.0.0.1")
        secure.sendall(b"POST /personae/next HTTP/1.1\r\nhost: x\r\n")
        assert closed(secure)
        secure.close()
    guarded.ask()
    half = half_a_call(guarded)  # who said it has all the time that calls have
    time.sleep(1)
    half.send(bytes(3000))
    assert half.getresponse().status == 200
    half.close()


def test_one_client_cannot_have_all_connections(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "OF_ONE", 3)
    guarded.ask()
    halves = []
    for _ in range(4):
        halves.append(half_a_call(guarded, size=10 + len(halves)))
        eventually(lambda: guarded.gate.traffic["ann"].held >= 10)
        time.sleep(0.1)
    assert closed(halves[0].sock)
    halves[3].send(bytes(13))
    assert halves[3].getresponse().status == 200
    assert guarded.call(ALIVE, headers=guarded.headers("bob"))[0] == 200
    for half in halves:
        half.close()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    make_certificates(tmp_path, [], ["ann"])
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        port, certs = other.server_port, tmp_path / "server"
        gate = Gate("127.0.0.1", port, certs, enrolled(certs), 1, Post(tmp_path / "post"))
        with pytest.raises(ConfigError, match=f":{port}: nothing can listen there"), gate:
            raise AssertionError
