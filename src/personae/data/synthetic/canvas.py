"""Painting with fields of numbers, one for each pixel.

Everything here and wherever pixels are computed is a correctly rounded operation (no exponential, no sine, no fused
or reordered sum): a pixel is then the same bit for bit whatever else is rendered with it, on however many threads.
Functions ending in an underscore, and those of `inside`, `dx`, `dy` and `turns`, use up their arguments' memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.synthetic.capture import Light


def bell(dx: Tensor, dy: Tensor | None = None) -> Tensor:
    """A smooth hill of height one that is exactly zero from distance one on."""
    square = dx.square_()
    if dy is not None:
        square = square.add_(dy.square_())
    return square.neg_().add_(1).clamp_(min=0).square_()


def step(inside: Tensor, per_unit: Tensor) -> Tensor:
    """The anti-aliased indicator of `inside > 0`, a signed distance; `per_unit` is in pixels."""
    return inside.mul_(per_unit).add_(0.5).clamp_(0, 1)


def ramp(inside: Tensor, width: float) -> Tensor:
    """Zero up to `inside` = 0, one from `width` on."""
    return inside.mul_(1 / width).clamp_(0, 1)


def wave(turns: Tensor) -> Tensor:
    """Sine-like, of period one: a parabola for each half-wave."""
    turns = turns.sub_(turns.round())
    return turns.abs().mul_(-16).add_(8).mul_(turns)


def blend_(target: Tensor, keep: Tensor, value: Tensor | float) -> None:
    """Move the target towards the value, all the way where `keep` is zero."""
    target.sub_(value).mul_(keep).add_(value)


@dataclass(frozen=True)
class Canvas:
    """Colour and its shade `tone`, how directly light falls on it, and shine: composed back to front, lit once."""

    colour: Tensor
    tone: Tensor
    light: Tensor
    shine: Tensor

    @classmethod
    def plain(cls, colour: Tensor, tone: Tensor, light: float) -> "Canvas":
        return cls(colour, tone, torch.full_like(tone, light), torch.zeros_like(tone))

    def rows(self, index: Tensor) -> "Canvas":
        return Canvas(*(layer.index_select(0, index) for layer in self._layers()))

    def put(self, index: Tensor, canvas: "Canvas") -> None:
        for layer, part in zip(self._layers(), canvas._layers(), strict=True):
            layer.index_copy_(0, index, part)

    def _layers(self) -> tuple[Tensor, ...]:
        return self.colour, self.tone, self.light, self.shine

    def cover(self, mask: Tensor, light: Tensor, colour: Tensor | None = None, tone: Tensor | float = 1.0) -> None:
        """Put a layer on top; without a colour, the one below shows (of the same material)."""
        keep = 1 - mask
        blend_(self.light, keep, light)
        blend_(self.tone, keep, tone)
        if colour is not None:
            self.shine.mul_(keep)
            blend_(self.colour, keep.unsqueeze(1), colour)

    def paint(self, mask: Tensor, colour: Tensor) -> None:
        """Change the colour of what is there, whatever lines were drawn on it."""
        keep = 1 - mask
        blend_(self.tone, keep, 1.0)
        blend_(self.colour, keep.unsqueeze(1), colour)

    def darken(self, mask: Tensor, amount: Tensor | float) -> None:
        self.tone.mul_(mask.mul_(amount).neg_().add_(1))

    def expose(self, light: Light) -> None:
        """Turn colours into ambient, direct and reflected light; what is drawn from here on is not lit any more."""
        direct = (self.light * self.tone).mul_(light.diffuse).unsqueeze(1) * light.colour
        direct.add_((self.tone * light.ambient).unsqueeze(1))
        self.colour.mul_(direct).add_((self.shine * (0.5 * light.gloss)).unsqueeze(1))
