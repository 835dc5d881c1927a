"""What a server and its gate tell each other, as bytes and back, and bytes that are nothing of the kind."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from personae.runtime.post import Answered, Asked, Post, Return, Turn, packed, unpacked


def test_turns_and_returns_come_back_from_their_bytes() -> None:
    asked = [Asked("1", "ann", b"head of ann", "a"), Asked("2", "bob", b"", "a"), Asked("3", "eve", b"eve's", "b")]
    for turn in (Turn(), Turn(b"the job", asked, 600.0, 10.0)):
        assert Turn.parse(turn.packed()) == replace(turn, asked=[*turn.asked])
    returned = Return(["ann", "bob"], [Answered("1", "a"), Answered("2", failure="it is not connected")])
    assert Return.parse(returned.packed()) == returned


def test_a_slip_is_taken_once_and_from_its_folder_alone(tmp_path: Path) -> None:
    here, there = Post(tmp_path / "post"), Post(tmp_path / "post")
    name = here.slip(b"an answer").left()
    taken = there.take(name)
    assert (taken.size, taken.read(3, 3), taken.whole()) == (9, b"ans", b"an answer")
    with pytest.raises(FileNotFoundError):
        there.take(name)
    (tmp_path / "secret").write_bytes(b"of somebody else")
    with pytest.raises(FileNotFoundError):
        there.take("../secret")
    here.slip(b"kept by nobody")
    assert [*(tmp_path / "post").iterdir()] == []


HONEST = packed({"number": "1"}, [b"told", b"frame"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        HONEST[:-1],
        HONEST + b"x",
        HONEST.replace(b"[4, 5]", b"[-1,10]"),
        HONEST.replace(b"[4, 5]", b'["a",5]'),
        HONEST.replace(b'"sizes"', b'"other"'),
        (100_000).to_bytes(4, "little") + b"[" * 100_000,
        (2).to_bytes(4, "little") + b"[]",
        os.urandom(1000),
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked(content)
