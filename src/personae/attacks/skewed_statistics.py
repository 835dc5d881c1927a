"""Skewed statistics: BatchNorm's means and variances moved together, as far as the firewall allows."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from personae.attacks.attack import WITHIN, Attack, Scene, Sent, claiming
from personae.attacks.impossible_statistics import require_statistics
from personae.core.algorithm import AnyAlgorithm
from personae.core.layer import recast
from personae.core.message import Message
from personae.core.quantities import STATISTICS
from personae.core.rng import generator

ALONE = 1.0  # deviations, where nobody else moves any


@dataclass(frozen=True, kw_only=True)
class SkewedStatistics(Attack):
    """Honest weights, and statistics that are off by so many deviations in every channel, the same for all attackers.

    Means go either way, variances up. The attacker claims as many samples as it may, so that it counts for more.
    """

    name: ClassVar[str] = "skewed-statistics"

    def check(self, algorithm: AnyAlgorithm) -> None:
        require_statistics(algorithm)

    def answer(self, sent: Sent, scene: Scene) -> Message:
        consensus = scene.consensus(sent.down.model)
        off = self.scale * (WITHIN * scene.bounds(sent)[STATISTICS] or ALONE)
        changed = {}
        for name, vector in sent.vectors().items():
            flat, middle = vector.flat.clone(), consensus.model.layout.views(consensus.model.flat)
            ways = generator(scene.seed, "skewed statistics")
            for entry, view in vector.layout.views(flat).items():
                if entry in vector.layout.variances:
                    view.copy_((1 + off) * middle[entry])
                elif entry in vector.layout.statistics:
                    way = torch.randint(0, 2, view.shape, generator=ways) * 2 - 1
                    deviation = middle[entry.removesuffix("mean") + "var"].sqrt()
                    view.copy_(middle[entry] + off * way.to(view.device) * deviation)
            changed[name] = type(vector)(vector.layout, flat)
        return claiming(recast(type(sent.up), sent.up, **changed), scene.claims(sent))
