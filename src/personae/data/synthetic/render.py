"""From numbers of people and images to pictures and attributes."""

import torch
from torch import Tensor

from personae.data.synthetic.accessories import draw_glasses, draw_occluder
from personae.data.synthetic.attributes import describe
from personae.data.synthetic.camera import develop
from personae.data.synthetic.capture import Shot, draw_shots
from personae.data.synthetic.domains import DEFAULT, Domain, find_domain
from personae.data.synthetic.face import paint_eyes, paint_facial_hair, paint_freckles, paint_mouth, paint_skin
from personae.data.synthetic.figure import (
    draw_back_hair,
    draw_body,
    draw_brim,
    draw_hair,
    draw_hat,
    draw_head,
    draw_nose,
)
from personae.data.synthetic.geometry import geometry_of
from personae.data.synthetic.people import Person, draw_people
from personae.data.synthetic.scene import Scene, Stage, Visible, visible

CHUNK_PIXELS = {"cpu": 1 << 16, "cuda": 1 << 24}  # rendered at a time: on a CPU, what stays in the cache
BLOCK = 4096  # images whose latents are worked out at a time


@torch.no_grad()
def render(
    identities: Tensor,
    images: Tensor,
    *,
    seed: int,
    size: int = 64,
    domain: str | Domain = DEFAULT,
    device: str | torch.device = "cpu",
) -> Tensor:
    """Images number `images[i]` of people number `identities[i]`: uint8 [N, size, size, 3] on the device."""
    _check(identities, images)
    if size < 8:
        raise ValueError(f"size is {size}; a face needs at least 8 pixels")
    domain, device = find_domain(domain), torch.device(device)
    result = torch.empty(len(identities), size, size, 3, dtype=torch.uint8, device=device)
    chunk = max(1, CHUNK_PIXELS.get(device.type, 1 << 22) // size**2)
    for first in range(0, len(identities), BLOCK):
        block = slice(first, first + BLOCK)
        person, shot = latents(identities[block], images[block], seed, domain)
        seen = visible(person, shot, domain.capture)
        scene = Scene(person, shot, geometry_of(person, shot, size)).as_fields(device)
        for start in range(0, len(seen.hat), chunk):
            part = slice(start, start + chunk)
            picture = _draw(scene.rows(part), seen.rows(part), size)
            film = scene.shot.film.rows(part)
            result[block][part] = develop(picture, film, domain.capture)
    return result


def latents(identities: Tensor, images: Tensor, seed: int, domain: Domain) -> tuple[Person, Shot]:
    """Always on the CPU, in double precision: every device then draws the same faces."""
    identities, images = identities.cpu().long(), images.cpu().long()
    return draw_people(identities, seed, domain.people), draw_shots(identities, images, seed, domain.capture)


def _check(identities: Tensor, images: Tensor) -> None:
    if identities.ndim != 1 or identities.shape != images.shape:
        raise ValueError(
            "identities and images are two vectors of equal length; "
            f"got shapes {tuple(identities.shape)} and {tuple(images.shape)}"
        )


def _draw(scene: Scene, seen: Visible, size: int) -> Tensor:
    """The light [N, 3, size, size] that reaches the sensor, back to front."""
    stage = Stage.set(scene, size)
    draw_body(stage)
    stage.only(seen.long_hair, lambda part, _: draw_back_hair(part))
    face = draw_head(stage)
    paint_skin(stage, face)
    stage.only(seen.freckles, lambda part, rows: paint_freckles(part, face.rows(rows)))
    stage.only(seen.facial_hair, lambda part, rows: paint_facial_hair(part, face.rows(rows)))
    paint_mouth(stage, face)
    paint_eyes(stage, face)
    draw_nose(stage, face)
    stage.only(seen.hair, lambda part, _: draw_hair(part))
    stage.only(seen.hat, lambda part, _: draw_hat(part))
    stage.only(seen.brim, lambda part, _: draw_brim(part))
    stage.canvas.expose(scene.shot.light)
    stage.only(seen.glasses, lambda part, rows: draw_glasses(part, face.rows(rows)))
    stage.only(seen.occluder, lambda part, _: draw_occluder(part))
    return stage.canvas.colour


def attributes(identities: Tensor, images: Tensor, *, seed: int, domain: str | Domain = DEFAULT) -> Tensor:
    """Which of `ATTRIBUTES` images number `images[i]` of people number `identities[i]` show: bool [N, attributes]."""
    _check(identities, images)
    domain = find_domain(domain)
    person, shot = latents(identities, images, seed, domain)
    return describe(person, shot, visible(person, shot, domain.capture))
