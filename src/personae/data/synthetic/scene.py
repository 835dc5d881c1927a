"""A chunk of images in the making: who, how, rays to meet things with, and the canvas."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.synthetic.canvas import Canvas, wave
from personae.data.synthetic.capture import Capture, Shot
from personae.data.synthetic.geometry import Geometry, Part
from personae.data.synthetic.latents import Latents
from personae.data.synthetic.people import BALD, LONG, Person

WALL_LIGHT = 0.6  # how directly the light falls on the backdrop


@dataclass(frozen=True)
class Visible(Latents):
    """What is to be seen in each image. Kept on the CPU: it decides which rows a layer is drawn for."""

    hair: Tensor
    long_hair: Tensor
    facial_hair: Tensor
    freckles: Tensor
    glasses: Tensor
    hat: Tensor
    brim: Tensor
    occluder: Tensor


def visible(person: Person, shot: Shot, capture: Capture) -> Visible:
    hat = shot.hat < capture.hat_rate * person.hat.liking
    return Visible(
        hair=person.hair.style != BALD,
        long_hair=person.hair.style == LONG,
        facial_hair=person.male > 0,
        freckles=person.skin.freckles > 0,
        glasses=person.glasses.owned & (shot.glasses < capture.glasses_rate),
        hat=hat,
        brim=hat & person.hat.brim,
        occluder=shot.occluder.shown,
    )


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


@dataclass(frozen=True)
class Scene(Latents):
    person: Person
    shot: Shot
    geometry: Geometry


def picture_axes(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Coordinates of columns [1, 1, size] and rows [1, size, 1] on the picture, from -1 to 1."""
    axis = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * (2 / size) - 1
    return axis.view(1, 1, -1), -axis.view(1, -1, 1)


@dataclass(frozen=True)
class Stage:
    """What a layer needs to draw itself, and the canvas it draws on."""

    person: Person
    shot: Shot
    geometry: Geometry
    rays: Rays
    canvas: Canvas

    @classmethod
    def set(cls, scene: Scene, size: int) -> "Stage":
        geometry = scene.geometry
        across, up = picture_axes(size, geometry.scale.device)
        origin_u, origin_v = geometry.origin.unbind(1)
        scale = geometry.scale
        rays = Rays(scale * across - origin_u, scale * up - origin_v, 0.5 * size / scale)
        return cls(scene.person, scene.shot, geometry, rays, _backdrop(scene, across, up))

    def only(self, flag: Tensor, draw: Callable[["Stage", Tensor], None]) -> None:
        """Draw a layer on the images that have the flag, a bool vector; the others are not touched."""
        index = flag.nonzero().flatten().to(self.rays.u.device)
        if len(index):
            person, shot, geometry = self.person.rows(index), self.shot.rows(index), self.geometry.rows(index)
            canvas = self.canvas.rows(index)
            draw(Stage(person, shot, geometry, self.rays.rows(index), canvas), index)
            self.canvas.put(index, canvas)

    def hit(self, part: Part) -> "Hit":
        return Hit(self, part)


class Hit:
    """Where the rays meet one ellipsoid."""

    def __init__(self, stage: Stage, part: Part) -> None:
        self.rays, self.conics, self.part = stage.rays, stage.geometry.parts, part
        a, b, c, d, e = self.conics.outline[:, part].unbind(1)
        u, v = self.rays.u, self.rays.v
        inside = (a * u + (b * v + c)).square_().add_((d * v + e).square_()).neg_().add_(1)
        self.cover = (inside * self.conics.edge[:, part]).add_(0.5).clamp_(0, 1)
        self.height = inside.clamp_(min=0).sqrt_()

    def value(self, forms: Tensor) -> Tensor:
        form = forms[:, self.part]
        return self.rays.linear(form).add_(self.height * form[:, 3])

    def light(self) -> Tensor:
        return self.value(self.conics.lambert).clamp_(min=0)


def _backdrop(scene: Scene, across: Tensor, up: Tensor) -> Canvas:
    look = scene.shot.backdrop
    along = look.along[:, 0] * across + look.along[:, 1] * up
    beside = look.across[:, 0] * across + look.across[:, 1] * up
    ripple = wave(0.7 * look.frequency * along).mul_(0.24).add_(look.phase)
    tone = wave(beside.mul_(look.frequency).add_(ripple)).mul_(look.amplitude).add_(1)
    mixture = along.mul_(0.5).add_(0.5).clamp_(0, 1)
    colour = mixture.unsqueeze(1) * (look.second - look.first)
    return Canvas.plain(colour.add_(look.first), tone, WALL_LIGHT)
