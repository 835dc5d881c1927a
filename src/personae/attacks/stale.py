"""Stale updates: an answer to a model of some rounds ago."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class Stale(Attack):
    """What the attacker would have answered `lag` rounds before, or in its first round."""

    name: ClassVar[str] = "stale"

    lag: int = 3

    def answer(self, sent: Sent, scene: Scene) -> Message:
        known = [*scene.past, sent.up]
        return known[max(0, len(known) - 1 - self.lag)]
