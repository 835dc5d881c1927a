"""Inner-product manipulation: a small step against the mean of honest ones (Xie et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Attack):
    """Every attacker sends -epsilon times the mean of honest steps, which is shorter than these."""

    name: ClassVar[str] = "inner-product"

    epsilon: float = 0.5

    def answer(self, sent: Sent, scene: Scene) -> Message:
        return sent.moved(lambda name: -self.scale * self.epsilon * scene.honest(name).mean(0))
