"""Names from one process of a server to another, and calls that wait for them at the gate."""

import socket
import threading
import time
from pathlib import Path

import pytest
from test_gate import PULL, Guarded, eventually, guarding

from personae.deployment import gate as gates
from personae.deployment.bells import ANSWERED, ASKED, Bell, ServersBells

ANNOUNCE, ENTER = "/v1/fleet/push-messages", "/v1/fleet/activate-node"


def test_a_bell_is_heard_once_from_when_one_listens_and_only_in_whole_lines(tmp_path: Path) -> None:
    there = Bell(tmp_path / "bell")
    there.ring("before")
    here = Bell(tmp_path / "bell")
    assert list(here.rung()) == []
    there.ring("ann")
    there.ring("bob")
    assert list(here.rung()) == ["ann", "bob"]
    with (tmp_path / "bell").open("a") as file:
        file.write("ev")
    assert list(here.rung()) == []
    with (tmp_path / "bell").open("a") as file:
        file.write("e\n")
    assert list(here.rung()) == ["eve"]
    assert list(Bell(tmp_path / "none").rung()) == []


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(gates, "HOLD", 60.0)
    monkeypatch.setattr(gates, "ATTENTION", 0.05)
    with guarding(tmp_path / "certs", run=tmp_path / "run") as made:
        yield made, ServersBells(tmp_path / "run")


def in_the_background(guarded: Guarded, path: str) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    threading.Thread(target=lambda: found.append(guarded.call(path, b"")), daemon=True).start()
    return found


def test_who_asks_for_a_request_waits_until_there_is_one(served: tuple[Guarded, ServersBells]) -> None:
    guarded, bells = served
    found = in_the_background(guarded, PULL)
    bells.ask("bob")
    time.sleep(0.3)
    assert not found
    bells.ask("ann")
    eventually(lambda: bool(found))
    assert guarded.asked == [PULL]
    bells.ask("ann")  # while nobody waits, and twice
    bells.ask("ann")
    assert [guarded.call(PULL, b"")[0] for _ in range(2)] == [200, 200]
    assert guarded.call(ENTER, b"")[0] == 200
    assert guarded.call(PULL, b"")[0] == 200  # the first look of a new connection is granted


def test_the_server_hears_of_an_answer_when_all_of_it_is_there(served: tuple[Guarded, ServersBells]) -> None:
    guarded, bells = served
    guarded.call(ENTER, b"")
    guarded.call(ANNOUNCE, b"")
    assert list(bells.answered()) == []
    guarded.call(PULL, b"")
    assert list(bells.answered()) == ["ann"]
    bells.ask("ann")
    guarded.call(PULL, b"")
    assert list(bells.answered()) == []


def test_nobody_gets_a_request_in_the_place_of_a_client_that_is_gone(
    served: tuple[Guarded, ServersBells], tmp_path: Path
) -> None:
    guarded, bells = served
    connection = guarded.connection()
    connection.request("POST", PULL, b"", guarded.headers())
    time.sleep(0.2)
    connection.sock.shutdown(socket.SHUT_RDWR)  # as the system does for a process that was killed
    connection.close()
    time.sleep(0.3)
    bells.ask("ann")
    time.sleep(0.3)
    assert guarded.asked == []
    assert guarded.call(PULL, b"")[0] == 200
    assert {path.name for path in (tmp_path / "run").iterdir()} == {ASKED}
    assert ANSWERED not in guarded.asked
