"""A free rider: it receives every model, and gives nothing."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class FreeRider(Attack):
    """The received weights sent back, as if trained on all its samples."""

    name: ClassVar[str] = "free-rider"

    def answer(self, sent: Sent, scene: Scene) -> Message:  # noqa: ARG002
        return sent.moved(lambda name: torch.zeros_like(sent.step(name)))
