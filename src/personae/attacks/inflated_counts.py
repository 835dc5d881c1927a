"""Inflated counts: the weight of many clients for one."""

from dataclasses import dataclass
from typing import Any, ClassVar

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.algorithm import AnyAlgorithm
from personae.core.layer import recast
from personae.core.message import Message
from personae.core.payload import Count


@dataclass(frozen=True, kw_only=True)
class InflatedCounts(Attack):
    """A sign flip that claims `times` the samples that it rests on."""

    name: ClassVar[str] = "inflated-counts"

    times: int = 900

    def check(self, algorithm: AnyAlgorithm) -> None:
        super().check(algorithm)
        if Count not in algorithm.types.up.kinds().values():
            raise ValueError(f"clients of {algorithm.name} send no number of samples")

    def answer(self, sent: Sent, scene: Scene) -> Message:  # noqa: ARG002
        flipped = sent.moved(lambda name: -self.scale * sent.step(name))
        counts: dict[str, Any] = {
            name: Count(self.times * getattr(sent.up, name).value)
            for name, kind in sent.up.kinds().items()
            if kind is Count and getattr(sent.up, name) is not None
        }
        return recast(type(flipped), flipped, **counts)
