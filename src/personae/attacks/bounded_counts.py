"""Bounded counts: as much weight as the firewall allows."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Attack, Scene, Sent, claiming
from personae.core.algorithm import AnyAlgorithm
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class BoundedCounts(Attack):
    """A sign flip that claims the most samples that are not drawn back."""

    name: ClassVar[str] = "bounded-counts"

    def check(self, algorithm: AnyAlgorithm) -> None:
        super().check(algorithm)
        self.require_counts(algorithm)

    def answer(self, sent: Sent, scene: Scene) -> Message:
        flipped = sent.moved(lambda name: -self.scale * sent.step(name))
        return claiming(flipped, scene.claims(sent))
