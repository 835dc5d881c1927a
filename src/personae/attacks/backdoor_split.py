"""A backdoor in parts that are not alike: each attacker sends other weights of one and the same step."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.attacks.attack import Scene, Sent, claiming
from personae.attacks.backdoor_counts import BackdoorCounts
from personae.core.message import Message
from personae.core.rng import generator


@dataclass(frozen=True, kw_only=True)
class BackdoorSplit(BackdoorCounts):
    """Every weight is moved by one attacker alone, so that their updates are at right angles.

    Each is as long, and claims as many samples, as the firewall allows.
    """

    name: ClassVar[str] = "backdoor-split"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        place = [each.client.name for each in scene.attackers].index(sent.client.name)

        def part(name: str) -> Tensor:
            common = torch.stack([each.step(name) for each in scene.attackers]).mean(0)
            source = generator(scene.seed, "parts of a backdoor")
            owners = torch.randint(0, len(scene.attackers), common.shape, generator=source).to(common.device)
            return self.scale * scene.longest(sent, name) * F.normalize(common * (owners == place), dim=0)

        return claiming(sent.moved(part), scene.claims(sent))
