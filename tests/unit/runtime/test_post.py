"""What a server and its gate tell each other, as bytes and back, and bytes that are nothing of the kind."""

import os

import pytest

from personae.runtime.post import Answered, Asked, Return, Turn, packed, unpacked


def test_turns_and_returns_come_back_from_their_bytes() -> None:
    asked = [Asked("1", "ann", b"head of ann", 0), Asked("2", "bob", b"", 0), Asked("3", "eve", b"eve's", 1)]
    for turn in (Turn(), Turn(b"the job", asked, [b"model", b""], 600.0, 10.0)):
        again = Turn.parse(turn.packed())
        assert (again.told, [*again.asked], [bytes(body) for body in again.bodies]) == (
            turn.told,
            [*turn.asked],
            [*turn.bodies],
        )
        assert (again.patience, again.wait) == (turn.patience, turn.wait)
    returned = Return(["ann", "bob"], [Answered("1", b"an answer"), Answered("2", failure="it is not connected")])
    again = Return.parse(returned.packed())
    assert again.connected == returned.connected
    assert [(each.number, bytes(each.content), each.failure) for each in again.answered] == [
        ("1", b"an answer", ""),
        ("2", b"", "it is not connected"),
    ]


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
