"""Noise in the place of what was learnt."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """A step in a random direction, as long as an honest one times `scale`."""

    name: ClassVar[str] = "noise"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        source = scene.generator(sent.client.name)

        def anywhere(name: str) -> Tensor:
            step = sent.step(name)
            noise = torch.randn(len(step), generator=source).to(step.device)
            return noise * (self.scale * float(step.norm() / noise.norm()))

        return sent.moved(anywhere)
