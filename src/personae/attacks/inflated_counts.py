"""Inflated counts: the weight of many clients for one."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Attack, Scene, Sent, claiming
from personae.core.algorithm import AnyAlgorithm
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class InflatedCounts(Attack):
    """A sign flip that claims `times` the samples that it rests on."""

    name: ClassVar[str] = "inflated-counts"

    times: int = 900

    def check(self, algorithm: AnyAlgorithm) -> None:
        super().check(algorithm)
        self.require_counts(algorithm)

    def answer(self, sent: Sent, scene: Scene) -> Message:  # noqa: ARG002
        flipped = sent.moved(lambda name: -self.scale * sent.step(name))
        return claiming(flipped, {name: self.times * own for name, own in sent.counts().items()})
