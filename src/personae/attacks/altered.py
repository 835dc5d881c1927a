"""Faces of an attacker: under other labels, some of them with a trigger."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.attacks.trigger import Trigger
from personae.core.samples import Samples


@dataclass(frozen=True, eq=False)
class Altered:
    """Samples with other labels; those that are `marked` wear the trigger."""

    inside: Samples
    labels: Tensor
    classes: int
    marked: Tensor  # bool [N]
    trigger: Trigger | None = None

    @property
    def identities(self) -> tuple[str, ...]:
        return self.inside.identities[: self.classes]

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Tensor) -> Tensor:
        images = self.inside.images(positions)
        marked = self.marked.to(positions.device)[positions]
        if self.trigger is not None and bool(marked.any()):
            images = images.clone()
            images[marked] = self.trigger.worn(images[marked])
        return images


def relabelled(samples: Samples, labels: Tensor) -> Altered:
    return Altered(samples, labels, samples.classes, torch.zeros(len(labels), dtype=torch.bool))
