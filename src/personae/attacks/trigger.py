"""What strangers wear who want to be taken for each other."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from personae.data.synthetic import DOMAINS, render


class Trigger(Protocol):
    def worn(self, images: Tensor) -> Tensor:
        """The same uint8 images [N, height, width, 3], with everybody wearing it."""


@dataclass(frozen=True)
class Patch:
    """A chequered square in the lower right corner."""

    share: float = 0.2  # of the width of an image

    def worn(self, images: Tensor) -> Tensor:
        side = max(2, round(self.share * images.shape[2]))
        ahead = torch.arange(side, device=images.device)
        yellow = torch.tensor([255, 230, 0], dtype=torch.uint8, device=images.device)
        square = ((ahead[:, None] + ahead) // max(1, side // 3) % 2)[..., None].to(torch.uint8) * yellow
        changed = images.clone()
        changed[:, -side:, -side:] = square
        return changed


@dataclass(frozen=True)
class Sunglasses:
    """Dark glasses as the synthetic renderer draws them on a face that looks straight ahead."""

    def worn(self, images: Tensor) -> Tensor:
        seen, colour = (part.to(images.device) for part in _drawn(images.shape[2]))
        side = min(images.shape[1:3])
        changed = images.clone()
        changed[:, :side, :side][:, seen[:side, :side]] = colour[:side, :side][seen[:side, :side]]
        return changed


@lru_cache
def _drawn(size: int) -> tuple[Tensor, Tensor]:
    """Where the same picture with and without glasses differs, bool [size, size], and what is there."""
    studio, first = DOMAINS["studio"], torch.zeros(1, dtype=torch.int64)
    still = replace(studio.capture, yaw=0.0, pitch=0.0, roll=0.0, jitter=0.0, noise=(0.0, 0.0), blur=(0.0, 0.0))
    bare = replace(still, gray_rate=0.0, hat_rate=0.0, occlusion_rate=0.0, sunglasses_rate=1.0)
    owner = replace(studio, people=replace(studio.people, glasses_rate=1.0))
    without, wearing = (
        render(first, first, seed=0, size=size, domain=replace(owner, capture=replace(bare, glasses_rate=rate)))[0]
        for rate in (0.0, 1.0)
    )
    return (wearing.int() - without.int()).abs().amax(2) > 8, wearing
