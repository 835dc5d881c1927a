"""Equal updates: colluders who send one and the same."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class EqualUpdates(Attack):
    """Every attacker goes against the mean of what the attackers have learnt."""

    name: ClassVar[str] = "equal-updates"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        def against(name: str) -> Tensor:
            return -self.scale * torch.stack([each.step(name) for each in scene.attackers]).mean(0)

        return sent.moved(against)
