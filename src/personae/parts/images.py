"""Batches of images in plain torch: from bytes to what a network takes, with random variation on the way."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from personae.core.bounds import Bounded, NonNegativeInt, within

VARIATION = 7
"""Numbers that say how one image varies: mirrored or not, moves along rows and columns, three slopes, brightness."""


def normalise(images: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W] in [-1, 1]; the memory stays in the order `channels_last` wants."""
    return images.permute(0, 3, 1, 2).float().mul_(1 / 127.5).sub_(1)


@dataclass(frozen=True, kw_only=True)
class Augmentation(Bounded):
    """Random variation of a training batch: numbers are drawn on the CPU, so that every device sees the same."""

    flip: bool = True  # every other image, by chance, is its mirror image
    shift: NonNegativeInt = 2  # crop: pixels by which an image moves at most in each direction; its border is repeated
    # brightness, contrast and the strength of each channel change by up to this share
    colour: Annotated[float, within("[0, 1)")] = 0.1
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """How each of `count` images varies, float32 [count, VARIATION]."""
        drawn = torch.zeros(count, VARIATION)
        drawn[:, 3:6] = 1
        if self.flip:
            drawn[:, 0] = torch.rand(count, generator=generator) < 0.5
        if self.shift:
            drawn[:, 1:3] = torch.randint(-self.shift, self.shift + 1, (2, count), generator=generator).T
        if self.colour:
            contrast, gains, brightness = (
                (torch.rand(count, channels, generator=generator) * 2 - 1).mul_(self.colour) for channels in (1, 3, 1)
            )
            drawn[:, 3:6] = (1 + contrast) * (1 + gains)
            drawn[:, 6:7] = brightness
        return drawn

    def __call__(self, images: Tensor, drawn: Tensor) -> Tensor:
        """A normalised float batch [N, 3, H, W] from uint8 [N, H, W, 3], varied as was drawn, on the same device."""
        if self.flip or self.shift:
            move = _move_one_by_one if images.device.type == "cpu" else _move_at_once
            images = move(images, drawn[:, 0] > 0, drawn[:, 1:3].long())
        batch = normalise(images)
        return _recolour(batch, drawn[:, 3:6], drawn[:, 6:7]) if self.colour else batch


def _move_one_by_one(images: Tensor, mirrored: Tensor, moves: Tensor) -> Tensor:
    """Flip and shift with slices of each image: to a CPU, several times faster than a gather."""
    count, height, width, _ = images.shape
    reach = int(moves.abs().max())
    source = torch.empty(count, height + 2 * reach, width + 2 * reach, 3, dtype=torch.uint8)
    inner = slice(reach, reach + width)
    for place, image, flip in zip(source[:, reach : reach + height, inner], images, mirrored.tolist(), strict=True):
        place.copy_(image.flip(1) if flip else image)
    if not reach:
        return source
    source[:, :reach, inner] = source[:, reach : reach + 1, inner]
    source[:, reach + height :, inner] = source[:, reach + height - 1 : reach + height, inner]
    source[:, :, :reach] = source[:, :, reach : reach + 1]
    source[:, :, reach + width :] = source[:, :, reach + width - 1 : reach + width]
    moved = torch.empty_like(images)
    columns = torch.where(mirrored, -moves[:, 1], moves[:, 1])  # moves are those of the image before it is mirrored
    corners = (torch.stack([moves[:, 0], columns], 1) + reach).tolist()
    for place, image, (top, left) in zip(moved.numpy(), source.numpy(), corners, strict=True):
        place[...] = image[top : top + height, left : left + width]
    return moved


def _move_at_once(images: Tensor, mirrored: Tensor, moves: Tensor) -> Tensor:
    """Flip and shift with one gather over rows and columns, as a GPU prefers."""
    count, height, width, _ = images.shape
    rows, columns = (torch.arange(side, device=images.device).expand(count, side) for side in (height, width))
    columns = torch.where(mirrored[:, None], width - 1 - columns, columns)
    rows = (rows + moves[:, :1]).clamp(0, height - 1)
    columns = (columns + moves[:, 1:]).clamp(0, width - 1)
    which = torch.arange(count, device=images.device)[:, None, None]
    return images[which, rows[:, :, None], columns[:, None, :]]


def _recolour(batch: Tensor, slopes: Tensor, brightness: Tensor) -> Tensor:
    """Multiply each channel, then brighten, in place; over whole rows of pixels, whose channels lie side by side."""
    count, _, height, width = batch.shape
    rows = batch.permute(0, 2, 3, 1).reshape(count, height, width * 3)
    rows.mul_(slopes.repeat(1, width)[:, None]).add_(brightness[:, None])
    return rows.view(count, height, width, 3).permute(0, 3, 1, 2)
