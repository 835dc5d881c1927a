"""Impossible statistics: variances below zero, of which BatchNorm takes the root."""

from dataclasses import dataclass
from typing import Any, ClassVar

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.algorithm import AnyAlgorithm
from personae.core.layer import recast
from personae.core.message import Message
from personae.core.payload import ModelState


@dataclass(frozen=True, kw_only=True)
class ImpossibleStatistics(Attack):
    """All running variances of BatchNorm are -scale."""

    name: ClassVar[str] = "impossible-statistics"

    def check(self, algorithm: AnyAlgorithm) -> None:
        require_statistics(algorithm)

    def answer(self, sent: Sent, scene: Scene) -> Message:  # noqa: ARG002
        changed: dict[str, Any] = {}
        for name, vector in sent.vectors().items():
            flat = vector.flat.clone()
            for entry, view in vector.layout.views(flat).items():
                if entry in vector.layout.variances:
                    view.fill_(-self.scale)
            changed[name] = type(vector)(vector.layout, flat)
        return recast(type(sent.up), sent.up, **changed)


def require_statistics(algorithm: AnyAlgorithm) -> None:
    """Raises ValueError where clients send none."""
    if ModelState not in algorithm.types.up.kinds().values():
        raise ValueError(f"clients of {algorithm.name} send no statistics of BatchNorm")
