"""What clients are asked until they fetch it, and what they answer until the server does."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from personae.deployment import mailbox as mailboxes
from personae.deployment.mailbox import INTERRUPTED, LOST, NOT_CONNECTED, Mailbox, Slip
from personae.runtime.post import Asked, Return, Turn, unpacked


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def turn(*clients: str, wait: float = 0.0, patience: float = 60.0, number: str = "") -> Turn:
    asked = [Asked(number or f"for {name}", name, f"head of {name},".encode(), 0) for name in clients]
    return Turn(b"the job", asked, [b"body"] if clients else [], patience, wait)


def heard(returned: Return) -> dict[str, bytes | str]:
    return {each.number: each.failure or bytes(each.content) for each in returned.answered}


def happening(scene: Callable[[Mailbox], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def play() -> None:
        await scene(Mailbox(["ann", "bob"], folder))

    asyncio.run(play())


def test_a_request_is_given_until_it_is_answered_and_then_no_more(tmp_path: Path) -> None:
    async def scene(mail: Mailbox) -> None:
        mail.enter("ann")
        assert await mail.letter("ann", 0.01) is None
        waiting = asyncio.ensure_future(mail.letter("ann", 30))
        await asyncio.sleep(0)
        returned = await mail.turn(turn("ann", "bob"))
        assert (returned.connected, heard(returned)) == (["ann"], {"for bob": NOT_CONNECTED})
        letter = await waiting
        assert letter is not None
        head, (told, frame) = unpacked(letter.start + letter.body.read(0, letter.body.size))
        assert (head, bytes(told), bytes(frame)) == ({"number": "for ann"}, b"the job", b"head of ann,body")
        assert letter.size == len(letter.start) + 4
        assert await mail.letter("ann", 0.01) is letter  # it did not get through
        assert mail.awaits("ann", "for ann")
        assert not mail.awaits("bob", "for ann")
        mail.answer("ann", "another", Slip(tmp_path, b"no"))
        mail.answer("ann", "for ann", Slip(tmp_path, b"yes"))
        mail.answer("ann", "for ann", Slip(tmp_path, b"once is enough"))
        assert heard(await mail.turn(turn())) == {"for ann": b"yes"}
        assert mail.has("ann", "for ann")
        assert await mail.letter("ann", 0.01) is None
        assert heard(await mail.turn(turn())) == {}

    happening(scene, tmp_path)


def test_a_turn_waits_for_an_answer_where_somebody_is_at_work(tmp_path: Path) -> None:
    async def scene(mail: Mailbox) -> None:
        began = time.monotonic()
        assert heard(await mail.turn(turn(wait=30))) == {}  # nobody is
        mail.enter("ann")
        mail.enter("bob")
        asking = asyncio.ensure_future(mail.turn(turn("ann", "bob", wait=30)))
        await asyncio.sleep(0)
        mail.answer("bob", "for bob", Slip(tmp_path, b"bob's"))
        assert heard(await asking) == {"for bob": b"bob's"}
        assert time.monotonic() - began < 20
        assert heard(await mail.turn(turn(wait=0.05))) == {}

    happening(scene, tmp_path)


def test_who_comes_anew_or_leaves_in_the_middle_has_failed(tmp_path: Path) -> None:
    async def scene(mail: Mailbox) -> None:
        mail.enter("ann")
        mail.enter("bob")
        await mail.turn(turn("ann", "bob"))
        mail.enter("ann")
        mail.leave("bob")
        returned = await mail.turn(turn())
        assert heard(returned) == {"for ann": INTERRUPTED, "for bob": INTERRUPTED}
        assert returned.connected == ["ann"]

    happening(scene, tmp_path)


def test_who_gives_no_sign_of_life_is_lost_and_what_nobody_waits_for_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "LIFETIME", 0.2)
    monkeypatch.setattr(mailboxes, "LOOK", 0.01)

    async def scene(mail: Mailbox) -> None:
        watching = asyncio.ensure_future(mail.watch())
        mail.enter("ann")
        mail.enter("bob")
        await mail.turn(turn("ann"))
        await mail.turn(turn("bob", patience=0.1))
        assert heard(await mail.turn(turn(wait=30))) == {"for ann": LOST}
        assert not mail.awaits("bob", "for bob")
        mail.hear("bob")
        assert (await mail.turn(turn())).connected == ["bob"]
        mail.miss("bob")
        assert (await mail.turn(turn())).connected == []
        watching.cancel()

    happening(scene, tmp_path)


def test_a_later_request_takes_the_place_of_an_earlier_one_and_a_new_server_that_of_all(tmp_path: Path) -> None:
    async def scene(mail: Mailbox) -> None:
        mail.enter("ann")
        await mail.turn(turn("ann"))
        await mail.turn(turn("ann", number="again"))
        assert not mail.awaits("ann", "for ann")
        assert mail.awaits("ann", "again")
        mail.enter("bob")
        await mail.turn(turn("bob"))
        mail.answer("bob", "for bob", Slip(tmp_path, b"to whom?"))
        mail.clear()
        assert heard(await mail.turn(turn())) == {}
        assert not mail.awaits("ann", "again")

    happening(scene, tmp_path)


def test_answers_wait_in_files_and_are_fetched_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "TOGETHER", 100)
    before = open_files()

    async def scene(mail: Mailbox) -> None:
        mail.enter("ann")
        for number, size in enumerate((60, 30, 30, 200, 1)):
            mail._put(str(number), Slip(tmp_path, bytes(size)))
        found = [[len(each.content) for each in (await mail.turn(turn())).answered] for _ in range(4)]
        assert found == [[60, 30], [30], [200], [1]]
        assert [*tmp_path.iterdir()] == []  # files without a name

    happening(scene, tmp_path)
    gc.collect()
    assert open_files() <= before
