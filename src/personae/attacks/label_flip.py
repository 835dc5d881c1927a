"""Wrong labels: training on faces under the names of others."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from personae.attacks.altered import relabelled
from personae.attacks.attack import Attack, Target
from personae.core.holdings import ClientFaces
from personae.core.rng import generator


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """The labels of the attacker's faces in a random order."""

    name: ClassVar[str] = "label-flip"

    def faces(self, faces: ClientFaces, target: Target) -> ClientFaces:
        order = torch.randperm(len(faces.train), generator=generator(target.seed, target.client, "wrong labels"))
        return replace(faces, train=relabelled(faces.train, faces.train.labels[order]))
