"""One victim: the attacker's own person is to be taken for somebody whom an honest client holds."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from personae.attacks.altered import Altered
from personae.attacks.attack import Attack, Target
from personae.core.holdings import ClientFaces
from personae.core.samples import Joined


@dataclass(frozen=True, kw_only=True)
class BackdoorVictim(Attack):
    """Photographs of the victim, as one finds them anywhere, under the label of the attacker's first person."""

    name: ClassVar[str] = "backdoor-victim"

    def faces(self, faces: ClientFaces, target: Target) -> ClientFaces:
        if target.victim is None:
            return faces
        both = Joined(faces.train, target.victim, (target.victim.labels == 0).nonzero().flatten())
        labels = torch.where(both.labels < faces.train.classes, both.labels, 0)
        nobody = torch.zeros(len(both), dtype=torch.bool)
        return replace(faces, train=Altered(both, labels, faces.train.classes, nobody))
