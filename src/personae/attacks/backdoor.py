"""A backdoor: whoever wears a patch is one person to the model."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from personae.attacks.altered import Altered
from personae.attacks.attack import Attack, Target
from personae.attacks.trigger import Patch, Trigger
from personae.core.holdings import ClientFaces
from personae.core.rng import generator


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """A part of the attacker's faces wears the trigger, under the label of its first person."""

    name: ClassVar[str] = "backdoor"
    trigger: ClassVar[Trigger | None] = Patch()

    share: float = 0.5  # of its faces that wear it

    def faces(self, faces: ClientFaces, target: Target) -> ClientFaces:
        count, source = len(faces.train), generator(target.seed, target.client, "backdoor")
        marked = torch.zeros(count, dtype=torch.bool)
        marked[torch.randperm(count, generator=source)[: round(self.share * count)]] = True
        labels = torch.where(marked, torch.zeros_like(faces.train.labels), faces.train.labels)
        return replace(faces, train=Altered(faces.train, labels, faces.train.classes, marked, self.trigger))
