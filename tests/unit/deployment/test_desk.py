"""Who is heard at a desk: whoever knows its key, and nobody else; nothing that comes there is unpickled."""

import pickle
import stat
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from personae.deployment.desk import KEY, Desk
from personae.runtime.problems import ProblemLog


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    def nowhere(job: object) -> None:
        raise AssertionError(job)

    heard: list[str] = []
    made = Desk(tmp_path / "desk", nowhere, heard.append, ProblemLog(tmp_path / "log"))
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield tmp_path / "desk", heard
    made.close()
    thread.join(30)
    assert not thread.is_alive()


def ask(path: Path, *parts: bytes, key: bytes | None = None) -> bytes:
    with Client(str(path), authkey=key or Path(f"{path}{KEY}").read_bytes()) as connection:
        for part in parts:
            connection.send_bytes(part)
        return connection.recv_bytes()


def test_the_key_is_for_its_owner_and_only_who_knows_it_is_heard(desk: tuple[Path, list[str]]):
    path, heard = desk
    for file in (path, Path(f"{path}{KEY}")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(AuthenticationError):
        ask(path, b"{}", b"", key=b"a guess")
    assert b"trouble" in ask(path, b"{}", b"")  # it goes on, and says what it cannot understand as a code
    assert len([line for line in heard if line.startswith("a request was not answered")]) == 1


def test_who_leaves_in_the_middle_or_sends_what_is_no_text_ends_nothing(desk: tuple[Path, list[str]]):
    path, heard = desk
    with Client(str(path), authkey=Path(f"{path}{KEY}").read_bytes()) as connection:
        connection.send_bytes(b"half of it")
    assert b"trouble" in ask(path, b"\xff\xfe", b"\0")
    assert any("it ended in the middle" in line for line in heard)


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_pickle_is_bytes_like_any_others(desk: tuple[Path, list[str]], tmp_path: Path):
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    path, _ = desk
    assert b"trouble" in ask(path, bomb, bomb)
    assert not (tmp_path / "exploded").exists()
