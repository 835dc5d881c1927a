"""What clients are asked until they fetch it, and what they answer until the server does."""

import asyncio
import gc
import stat
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from personae.deployment import mailbox as mailboxes
from personae.deployment.mailbox import INTERRUPTED, LOST, NOT_CONNECTED, Mailbox
from personae.runtime.post import Asked, Post, Return, Turn, unpacked


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


class Server:
    """The process that asks, and its post."""

    def __init__(self, folder: Path) -> None:
        self.post = Post(folder)

    def turn(self, *clients: str, wait: float = 0.0, patience: float = 60.0, number: str = "") -> Turn:
        body = self.post.slip(b"body").left() if clients else ""
        asked = [Asked(number or f"for {name}", name, f"head of {name},".encode(), body) for name in clients]
        return Turn(b"the job", asked, patience, wait)

    def heard(self, returned: Return) -> dict[str, bytes | str]:
        return {each.number: each.failure or self.post.take(each.slip).whole() for each in returned.answered}


def happening(scene: Callable[[Mailbox, Server], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def play() -> None:
        await scene(Mailbox(["ann", "bob"], Post(folder)), Server(folder))

    asyncio.run(play())


def test_a_request_is_given_until_it_is_answered_and_then_no_more(tmp_path: Path) -> None:
    async def scene(mail: Mailbox, server: Server) -> None:
        mail.enter("ann")
        assert await mail.letter("ann", 0.01) is None
        waiting = asyncio.ensure_future(mail.letter("ann", 30))
        await asyncio.sleep(0)
        returned = await mail.turn(server.turn("ann", "bob"))
        assert (returned.connected, server.heard(returned)) == (["ann"], {"for bob": NOT_CONNECTED})
        letter = await waiting
        assert letter is not None
        head, (told, frame) = unpacked(letter.start + letter.body.read(0, letter.body.size))
        assert (head, bytes(told), bytes(frame)) == ({"number": "for ann"}, b"the job", b"head of ann,body")
        assert letter.size == len(letter.start) + 4
        assert await mail.letter("ann", 0.01) is letter  # it did not get through
        assert mail.awaits("ann", "for ann")
        assert not mail.awaits("bob", "for ann")
        mail.answer("ann", "another", server.post.slip(b"no"))
        mail.answer("ann", "for ann", server.post.slip(b"yes"))
        mail.answer("ann", "for ann", server.post.slip(b"once is enough"))
        assert server.heard(await mail.turn(server.turn())) == {"for ann": b"yes"}
        assert mail.has("ann", "for ann")
        assert await mail.letter("ann", 0.01) is None
        assert server.heard(await mail.turn(server.turn())) == {}

    happening(scene, tmp_path)


def test_a_turn_waits_where_somebody_is_at_work_until_all_have_answered_or_much_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "TOGETHER", 100)

    async def scene(mail: Mailbox, server: Server) -> None:
        began = time.monotonic()
        assert server.heard(await mail.turn(server.turn(wait=30))) == {}  # nobody is
        mail.enter("ann")
        mail.enter("bob")
        asking = asyncio.ensure_future(mail.turn(server.turn("ann", "bob", wait=30)))
        await asyncio.sleep(0)
        mail.answer("bob", "for bob", server.post.slip(b"bob's"))
        await asyncio.sleep(0.05)
        assert not asking.done()
        mail.answer("ann", "for ann", server.post.slip(b"ann's"))
        assert server.heard(await asking) == {"for bob": b"bob's", "for ann": b"ann's"}
        asking = asyncio.ensure_future(mail.turn(server.turn("ann", "bob", wait=30)))
        await asyncio.sleep(0)
        mail.answer("bob", "for bob", server.post.slip(bytes(100)))
        assert server.heard(await asking) == {"for bob": bytes(100)}
        assert time.monotonic() - began < 20
        assert server.heard(await mail.turn(server.turn(wait=0.05))) == {}  # ann goes on

    happening(scene, tmp_path)


def test_who_comes_anew_or_leaves_in_the_middle_has_failed(tmp_path: Path) -> None:
    async def scene(mail: Mailbox, server: Server) -> None:
        mail.enter("ann")
        mail.enter("bob")
        await mail.turn(server.turn("ann", "bob"))
        mail.enter("ann")
        mail.leave("bob")
        returned = await mail.turn(server.turn())
        assert server.heard(returned) == {"for ann": INTERRUPTED, "for bob": INTERRUPTED}
        assert returned.connected == ["ann"]

    happening(scene, tmp_path)


def test_who_gives_no_sign_of_life_is_lost_and_what_nobody_waits_for_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "LIFETIME", 0.2)
    monkeypatch.setattr(mailboxes, "LOOK", 0.01)

    async def scene(mail: Mailbox, server: Server) -> None:
        watching = asyncio.ensure_future(mail.watch())
        mail.enter("ann")
        mail.enter("bob")
        await mail.turn(server.turn("ann"))
        await mail.turn(server.turn("bob", patience=0.1))
        assert server.heard(await mail.turn(server.turn(wait=30))) == {"for ann": LOST}
        assert not mail.awaits("bob", "for bob")
        mail.hear("bob")
        assert (await mail.turn(server.turn())).connected == ["bob"]
        mail.miss("bob")
        assert (await mail.turn(server.turn())).connected == []
        watching.cancel()

    happening(scene, tmp_path)


def test_a_later_request_takes_the_place_of_an_earlier_one_and_a_new_server_that_of_all(tmp_path: Path) -> None:
    async def scene(mail: Mailbox, server: Server) -> None:
        mail.enter("ann")
        await mail.turn(server.turn("ann"))
        await mail.turn(server.turn("ann", number="again"))
        assert not mail.awaits("ann", "for ann")
        assert mail.awaits("ann", "again")
        mail.enter("bob")
        await mail.turn(server.turn("bob"))
        mail.answer("bob", "for bob", server.post.slip(b"to whom?"))
        mail.clear()
        assert server.heard(await mail.turn(server.turn())) == {}
        assert not mail.awaits("ann", "again")

    happening(scene, tmp_path)


def test_what_waits_is_in_files_that_nobody_else_finds_and_that_are_gone_when_they_are_taken(tmp_path: Path) -> None:
    before = open_files()

    async def scene(mail: Mailbox, server: Server) -> None:
        mail.enter("ann")
        mail.enter("bob")
        await mail.turn(server.turn("ann", "bob"))
        assert [*tmp_path.iterdir()] == []  # the requests have no names any more
        begun = mail.new_slip()
        begun.add(b"half of")
        (waiting,) = tmp_path.iterdir()
        assert stat.S_IMODE(waiting.stat().st_mode) == 0o600
        del begun  # the call broke off
        assert [*tmp_path.iterdir()] == []
        mail.answer("ann", "for ann", server.post.slip(b"ann's"))
        mail.answer("bob", "for bob", server.post.slip(bytes(1000)))
        assert server.heard(await mail.turn(server.turn())) == {"for ann": b"ann's", "for bob": bytes(1000)}
        assert [*tmp_path.iterdir()] == []

    happening(scene, tmp_path)
    gc.collect()
    assert open_files() <= before


def test_what_a_server_that_was_killed_has_left_is_removed(tmp_path: Path) -> None:
    async def scene(mail: Mailbox, server: Server) -> None:
        mail.enter("ann")
        await mail.turn(server.turn("ann"))
        mail.answer("ann", "for ann", server.post.slip(b"ann's"))
        await mail.turn(server.turn())  # nobody takes it
        server.turn("ann")  # nor this
        assert len([*tmp_path.iterdir()]) == 2
        mail.clear()
        assert [*tmp_path.iterdir()] == []

    happening(scene, tmp_path)
