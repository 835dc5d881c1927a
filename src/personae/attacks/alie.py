"""A little is enough: colluders just inside the spread of honest updates (Baruch et al. 2019)."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from torch import Tensor

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class LittleIsEnough(Attack):
    """The mean of honest steps less z of their deviations, entry by entry."""

    name: ClassVar[str] = "alie"

    least: float = 1.0  # z, where the paper's formula gives less: for few attackers it gives nothing

    def z(self, everybody: int, attackers: int) -> float:
        """So many deviations that more than half of all updates, with the attackers', are farther from the mean."""
        honest = everybody - attackers
        supporters = everybody // 2 + 1 - attackers
        share = (honest - supporters) / honest if honest else 0.0
        return max(self.least, NormalDist().inv_cdf(share)) if 0 < share < 1 else self.least

    def answer(self, sent: Sent, scene: Scene) -> Message:
        z = self.z(len(scene.attackers) + len(scene.others), len(scene.attackers))

        def inside(name: str) -> Tensor:
            honest = scene.honest(name)
            return self.scale * (honest.mean(0) - z * honest.std(0, correction=0))

        return sent.moved(inside)
