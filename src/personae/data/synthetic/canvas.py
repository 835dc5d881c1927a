"""Painting with fields of numbers, one for each pixel.

Everything here and wherever pixels are computed is a correctly rounded operation (no exponential, no sine, no fused
or reordered sum): a pixel is then the same bit for bit whatever else is rendered with it, on however many threads.
The brushes reuse the memory of their first arguments.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.synthetic.capture import Light

TINY = 1e-12  # instead of zero under a square root: on some processors the root of zero takes many times as long


def bell(dx: Tensor, dy: Tensor | None = None) -> Tensor:
    """A smooth hill of height one that is exactly zero from distance one on."""
    square = dx.square_()
    if dy is not None:
        square = square.add_(dy.square_())
    return square.neg_().add_(1).clamp_(min=0).square_()


def step(inside: Tensor, per_unit: Tensor | float) -> Tensor:
    """The anti-aliased indicator of `inside > 0`, a signed distance, given the pixels per unit."""
    return inside.mul_(per_unit).add_(0.5).clamp_(0, 1)


def ramp(inside: Tensor, width: float) -> Tensor:
    """Zero up to `inside` = 0, one from `width` on."""
    return inside.mul_(1 / width).clamp_(0, 1)


def wave(turns: Tensor) -> Tensor:
    """Sine-like, of period one: a parabola for each half-wave."""
    turns = turns.sub_(turns.round())
    return turns.abs().mul_(-16).add_(8).mul_(turns)


def blend(target: Tensor, keep: Tensor, value: Tensor | float) -> None:
    """Move the target towards the value, all the way where `keep` is zero."""
    target.sub_(value).mul_(keep).add_(value)


@dataclass(frozen=True)
class Canvas:
    """Pictures composed back to front and lit once.

    `layers` [N, 6, height, width] are the three channels of the `colour`, its shade `tone`, how directly the `light`
    falls and how much it is mirrored (`shine`).
    """

    layers: Tensor

    @classmethod
    def blank(cls, count: int, size: int, device: torch.device) -> "Canvas":
        return cls(torch.empty(count, 6, size, size, device=device))

    @property
    def colour(self) -> Tensor:
        return self.layers[:, :3]

    @property
    def tone(self) -> Tensor:
        return self.layers[:, 3]

    @property
    def light(self) -> Tensor:
        return self.layers[:, 4]

    @property
    def shine(self) -> Tensor:
        return self.layers[:, 5]

    def cover(self, mask: Tensor, light: Tensor, colour: Tensor, tone: Tensor | float = 1.0) -> None:
        """Put something on top."""
        keep = mask.neg_().add_(1)
        blend(self.light, keep, light)
        blend(self.tone, keep, tone)
        blend(self.colour, keep.unsqueeze(1), colour)
        self.shine.mul_(keep)

    def paint(self, mask: Tensor, colour: Tensor) -> None:
        """Change the colour of what is there, and paint over the lines that were drawn on it."""
        keep = 1 - mask
        blend(self.tone, keep, 1.0)
        blend(self.colour, keep.unsqueeze(1), colour)

    def darken(self, mask: Tensor, amount: Tensor | float) -> None:
        self.tone.mul_(mask.mul_(amount).neg_().add_(1))

    def expose(self, light: Light) -> None:
        """Turn colours into ambient, direct and mirrored light; what is drawn from here on is not lit any more."""
        self.light.mul_(self.tone).mul_(light.diffuse)
        self.tone.mul_(light.ambient)
        received = self.light.unsqueeze(1) * light.colour
        self.colour.mul_(received.add_(self.tone.unsqueeze(1))).add_(self.shine.mul_(0.5 * light.gloss).unsqueeze(1))
