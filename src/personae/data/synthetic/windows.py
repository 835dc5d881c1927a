"""Rectangles of each image, so that drawing a feature costs no more than the pixels about it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """A rectangle of the same size in each image, at a place of its own."""

    top: Tensor
    left: Tensor
    height: int
    width: int

    @classmethod
    def around(cls, centre: Tensor, extent: tuple[float, float], size: int) -> "Window":
        """About the centres [N, 2] on the picture (-1..1, upwards), with this half-width and half-height."""
        width, height = (min(size, int(half * size) + 2) for half in extent)
        across, up = centre.unbind(1)
        left = ((across + 1) * (0.5 * size) - 0.5 * width).round().clamp(0, size - width)
        top = ((1 - up) * (0.5 * size) - 0.5 * height).round().clamp(0, size - height)
        return cls(top.long(), left.long(), height, width)

    def columns(self) -> Tensor:
        return self.left.view(-1, 1, 1) + torch.arange(self.width, device=self.left.device)

    def lines(self) -> Tensor:
        return self.top.view(-1, 1, 1) + torch.arange(self.height, device=self.top.device).unsqueeze(1)

    def take(self, fields: Tensor) -> Tensor:
        """The windows of fields [N, K, size, size]."""
        count, kinds, _, size = fields.shape
        planes = torch.arange(count * kinds, device=fields.device).view(count, kinds, 1) * size**2
        starts = planes + (self.lines() * size + self.left.view(-1, 1, 1)).flatten(1).unsqueeze(1)
        runs = fields.as_strided((fields.numel() - self.width + 1, self.width), (1, 1), fields.storage_offset())
        return runs.index_select(0, starts.flatten()).view(count, kinds, self.height, self.width)

    def put(self, fields: Tensor, part: Tensor) -> None:
        count, kinds, _, size = fields.shape
        index = (self.lines() * size + self.columns()).flatten(1).unsqueeze(1).expand(-1, kinds, -1)
        fields.view(count, kinds, -1).scatter_(2, index, part.flatten(2))
