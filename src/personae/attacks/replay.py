"""Replay: the answer of the first round, again and again."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """What the attacker answered first, to the byte."""

    name: ClassVar[str] = "replay"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        return scene.past[0] if scene.past else sent.up
