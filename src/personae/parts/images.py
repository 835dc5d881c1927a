"""Batches of images in plain torch: from bytes to what a network takes, with random variation on the way."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor


def normalise(images: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W] in [-1, 1]; the memory stays in the order `channels_last` wants."""
    return images.permute(0, 3, 1, 2).float().mul_(1 / 127.5).sub_(1)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random variation of a training batch. Numbers are drawn on the CPU, so that every device sees the same."""

    flip: bool = True
    shift: int = 2  # crop: pixels by which an image moves at most in each direction; its border is repeated
    colour: float = 0.1  # brightness, contrast and the strength of each channel change by up to this share
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.shift < 0 or not 0 <= self.colour < 1:
            raise ValueError("shift must not be negative, and colour must be in [0, 1)")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """A normalised float batch [N, 3, H, W] from uint8 [N, H, W, 3]."""
        return self._recolour(normalise(self._move(images, generator)), generator)

    def _move(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Flip and shift by one gather over rows and columns."""
        count, height, width, _ = images.shape
        if not self.flip and not self.shift:
            return images
        columns = torch.arange(width).expand(count, width)
        if self.flip:
            mirrored = torch.rand(count, 1, generator=generator) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
        rows = torch.arange(height).expand(count, height)
        if self.shift:
            moves = torch.randint(-self.shift, self.shift + 1, (2, count, 1), generator=generator)
            rows, columns = (rows + moves[0]).clamp(0, height - 1), (columns + moves[1]).clamp(0, width - 1)
        device = images.device
        which = torch.arange(count, device=device)[:, None, None]
        return images[which, rows.to(device)[:, :, None], columns.to(device)[:, None, :]]

    def _recolour(self, images: Tensor, generator: torch.Generator) -> Tensor:
        if not self.colour:
            return images
        count = len(images)
        contrast, gains, brightness = (
            (torch.rand(count, channels, 1, 1, generator=generator) * 2 - 1).mul_(self.colour) for channels in (1, 3, 1)
        )
        slope = ((1 + contrast) * (1 + gains)).to(images.device)
        return images.mul_(slope).add_(brightness.to(images.device))
