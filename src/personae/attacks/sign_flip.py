"""Sign flip: away from where honest training goes."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """x - scale (y - x), with x the received model and y the trained one."""

    name: ClassVar[str] = "sign-flip"

    def answer(self, sent: Sent, scene: Scene) -> Message:  # noqa: ARG002
        return sent.moved(lambda name: -self.scale * sent.step(name))
