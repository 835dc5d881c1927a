"""A chunk of images in the making: who, how, rays to meet things with, and the canvas."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from personae.data.synthetic.anatomy import Anatomy, Part, Spot
from personae.data.synthetic.canvas import TINY, Canvas, wave
from personae.data.synthetic.capture import Shot
from personae.data.synthetic.latents import Latents
from personae.data.synthetic.person import Person
from personae.data.synthetic.windows import Window

WALL_LIGHT = 0.6  # how directly the light falls on the backdrop

# Half-width and half-height of the windows, in head coordinates; heads may be rolled by some twenty degrees.
EXTENTS = {
    Spot.LEFT_EAR: (0.19, 0.27),
    Spot.RIGHT_EAR: (0.19, 0.27),
    Spot.NOSE: (0.30, 0.36),
    Spot.EYES: (0.60, 0.42),
    Spot.MOUTH: (0.42, 0.35),
    Spot.CHIN: (0.34, 0.28),
    Spot.FIRST_MOLE: (0.04, 0.04),
}


@dataclass(frozen=True)
class Scene(Latents):
    person: Person
    shot: Shot
    anatomy: Anatomy


@dataclass(frozen=True)
class Rays(Latents):
    """Coordinates of the pixels: u for each column and v for each row, in head coordinates; and pixels per unit."""

    u: Tensor
    v: Tensor
    per_unit: Tensor

    def linear(self, form: Tensor) -> Tensor:
        """The value of a u + b v + c at each pixel."""
        a, b, c = form.unbind(1)[:3]
        return a * self.u + (b * self.v + c)

    def within(self, window: Window) -> "Rays":
        return Rays(self.u.gather(2, window.columns()), self.v.gather(1, window.lines()), self.per_unit)


@dataclass(frozen=True)
class Face(Latents):
    """The front of the head, as `fields` [N, 4, height, width].

    These are the coordinates x and y of what is seen at each pixel, the depth along the ray (far away beside the
    head), and how much of the front is seen.
    """

    fields: Tensor

    @property
    def x(self) -> Tensor:
        return self.fields[:, 0]

    @property
    def y(self) -> Tensor:
        return self.fields[:, 1]

    @property
    def depth(self) -> Tensor:
        return self.fields[:, 2]

    @property
    def front(self) -> Tensor:
        return self.fields[:, 3]

    @cached_property
    def aside(self) -> Tensor:
        """The distance from the middle, which makes one drawing do for both halves of the face."""
        return self.x.abs()

    @cached_property
    def side(self) -> Tensor:
        return self.x.sign()


@dataclass(frozen=True)
class Drawing:
    """What a layer needs to draw itself, and the canvas it draws on; `closest` is the least scale there may be."""

    person: Person
    shot: Shot
    anatomy: Anatomy
    rays: Rays
    canvas: Canvas
    closest: float

    @classmethod
    def begin(cls, scene: Scene, size: int, closest: float) -> "Drawing":
        anatomy = scene.anatomy
        across, up = picture_axes(size, anatomy.scale.device)
        origin_u, origin_v = anatomy.origin.unbind(1)
        scale = anatomy.scale
        rays = Rays(scale * across - origin_u, scale * up - origin_v, 0.5 * size / scale)
        return cls(scene.person, scene.shot, anatomy, rays, _backdrop(scene, across, up), closest)

    def only(self, flag: Tensor, draw: Callable[[Self], None]) -> None:
        """Draw on the images that have the flag, a bool vector; the others are not touched."""
        chosen = flag.nonzero().flatten()
        if not len(chosen):
            return
        first, last = int(chosen[0]), int(chosen[-1])
        if last - first + 1 == len(chosen):
            draw(self._rows(slice(first, last + 1)))
        else:
            index = chosen.to(self.canvas.layers.device)
            part = self._rows(index)
            draw(part)
            self.canvas.layers.index_copy_(0, index, part.canvas.layers)

    def within(self, spot: int, draw: Callable[[Self], None]) -> None:
        """Draw inside the window about a spot of the head; the rest of each image is not touched."""
        half_width, half_height = EXTENTS[Spot(min(spot, Spot.FIRST_MOLE))]
        extent = half_width / self.closest, half_height / self.closest
        window = Window.around(self.anatomy.spots[:, spot, :, 0, 0], extent, self.canvas.layers.shape[-1])
        part = self._window(window)
        draw(part)
        window.put(self.canvas.layers, part.canvas.layers)

    def hit(self, part: Part) -> "Hit":
        return Hit(self, part)

    def _rows(self, index: Tensor | slice) -> Self:
        return replace(
            self,
            person=self.person.rows(index),
            shot=self.shot.rows(index),
            anatomy=self.anatomy.rows(index),
            rays=self.rays.rows(index),
            canvas=Canvas(self.canvas.layers[index]),
        )

    def _window(self, window: Window) -> Self:
        return replace(self, rays=self.rays.within(window), canvas=Canvas(window.take(self.canvas.layers)))


@dataclass(frozen=True)
class Portrait(Drawing):
    """A drawing with a head on it."""

    face: Face

    def _rows(self, index: Tensor | slice) -> Self:
        return replace(super()._rows(index), face=self.face.rows(index))

    def _window(self, window: Window) -> Self:
        return replace(super()._window(window), face=Face(window.take(self.face.fields)))


class Hit:
    """Where the rays meet one ellipsoid."""

    def __init__(self, drawing: Drawing, part: Part) -> None:
        self.rays, self.conics, self.part = drawing.rays, drawing.anatomy.parts, part
        a, b, c, d, e = self.conics.outline[:, part].unbind(1)
        u, v = self.rays.u, self.rays.v
        inside = (a * u + (b * v + c)).square_().add_((d * v + e).square_()).neg_().add_(1)
        self.cover = (inside * self.conics.edge[:, part]).add_(0.5).clamp_(0, 1)
        self.height = inside.clamp_(min=TINY).sqrt_()

    def value(self, forms: Tensor) -> Tensor:
        form = forms[:, self.part]
        return self.rays.linear(form).add_(self.height * form[:, 3])

    def light(self) -> Tensor:
        return self.value(self.conics.lambert).clamp_(min=0)


def picture_axes(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Coordinates of columns [1, 1, size] and rows [1, size, 1] on the picture, from -1 to 1."""
    axis = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * (2 / size) - 1
    return axis.view(1, 1, -1), -axis.view(1, -1, 1)


def _backdrop(scene: Scene, across: Tensor, up: Tensor) -> Canvas:
    look = scene.shot.backdrop
    along = look.along[:, 0] * across + look.along[:, 1] * up
    beside = look.across[:, 0] * across + look.across[:, 1] * up
    ripple = wave(along * (0.7 * look.frequency)).mul_(0.24).add_(look.phase)
    tone = wave(beside.mul_(look.frequency).add_(ripple)).mul_(look.amplitude).add_(1)
    mixture = along.mul_(0.5).add_(0.5).clamp_(0, 1).unsqueeze(1)
    canvas = Canvas.blank(len(along), along.shape[1], along.device)
    torch.mul(mixture, look.second - look.first, out=canvas.colour).add_(look.first)
    canvas.tone.copy_(tone)
    canvas.light.fill_(WALL_LIGHT)
    canvas.shine.zero_()
    return canvas
