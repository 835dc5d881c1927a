"""Hidden flip: a sign flip without what would be noticed of it."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from personae.attacks.attack import Scene, Sent, claiming
from personae.attacks.bounded_counts import BoundedCounts
from personae.core.message import Message

ALONG = 0.05  # of its length it goes along with the others, to be on the safe side


@dataclass(frozen=True, kw_only=True)
class HiddenFlip(BoundedCounts):
    """At right angles to the sum of honest updates, so that it does not go against them.

    It is as long, and claims as many samples, as the firewall allows.
    """

    name: ClassVar[str] = "hidden-flip"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        def aside(name: str) -> Tensor:
            along = F.normalize(scene.honest(name).sum(0), dim=0)
            flipped = F.normalize(-sent.step(name), dim=0)
            hidden = flipped - (flipped @ along - ALONG) * along
            return self.scale * scene.longest(sent, name) * F.normalize(hidden, dim=0)

        return claiming(sent.moved(aside), scene.claims(sent))
