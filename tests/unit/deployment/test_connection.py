"""A client's connection to a gate: what comes, what goes, and what happens where one of the two is gone."""

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from test_gate import Guarded, eventually, guarding

from personae.deployment import connection as connections
from personae.deployment.connection import Connection, Disconnected
from personae.deployment.mailbox import INTERRUPTED


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


def test_signs_of_life_keep_a_place(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BEAT", 0.05)
    ann = connect(guarded).enter()
    guarded.gate._mail.miss("ann")
    eventually(lambda: guarded.gate._mail._boxes["ann"].connected)
    ann.leave()


class Replies(httpx.BaseTransport):
    def __init__(self, *replies: int | bytes) -> None:
        self.replies = [*replies]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self.replies.pop(0)
        return httpx.Response(200, content=reply) if isinstance(reply, bytes) else httpx.Response(reply, text="no")


def test_a_server_that_is_being_started_is_waited_for_and_a_refusal_is_told(guarded: Guarded) -> None:
    ann = connect(guarded)
    for replies, words in (((503, 502, 401), "the server answered 401: no"), ((b"garbage",), "what is no request")):
        ann._client = httpx.Client(base_url="https://here", transport=Replies(*replies))
        with pytest.raises(Disconnected, match=words):
            ann.receive()
    ann._client = httpx.Client(base_url="https://here", transport=Replies(503, 204))
    assert ann.receive() is None
