"""From numbers of people and images to pictures and attributes."""

from functools import partial

import torch
from torch import Tensor

from personae.data.synthetic.accessories import draw_glasses, draw_occluder
from personae.data.synthetic.anatomy import Spot, anatomy_of
from personae.data.synthetic.camera import develop
from personae.data.synthetic.capture import Shot, draw_shots
from personae.data.synthetic.celeba import describe
from personae.data.synthetic.domains import DEFAULT, Domain, find_domain
from personae.data.synthetic.face import (
    paint_cheeks,
    paint_chin,
    paint_eyes,
    paint_facial_hair,
    paint_freckles,
    paint_mole,
    paint_mouth,
    paint_wrinkles,
)
from personae.data.synthetic.figure import (
    draw_back_hair,
    draw_body,
    draw_brim,
    draw_ears,
    draw_hair,
    draw_hat,
    draw_head,
    draw_neck,
    draw_nose,
)
from personae.data.synthetic.people import draw_people
from personae.data.synthetic.person import MOLES, Person
from personae.data.synthetic.scene import Drawing, Scene
from personae.data.synthetic.visible import Visible, visible

CHUNK_PIXELS = {"cpu": 1 << 18, "cuda": 1 << 24}  # rendered at a time: on a CPU, what stays in the cache
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
        order = _order(seen)
        seen = seen.rows(order)
        anatomy = anatomy_of(person, shot, size)
        scene = Scene(person, shot, anatomy).rows(order).as_fields(device)
        places = order.to(device) + first
        for start in range(0, len(order), chunk):
            part = slice(start, start + chunk)
            picture = _draw(scene.rows(part), seen.rows(part), size, domain.capture.closest)
            gray = seen.gray[part].nonzero().flatten().to(device)
            developed = develop(picture, scene.shot.film.rows(part), gray, domain.capture)
            result.index_copy_(0, places[part], developed)
    return result


def _order(seen: Visible) -> Tensor:
    """Images with the same layers next to each other: most layers then are for all, none or a run of a chunk."""
    code = torch.zeros_like(seen.hair, dtype=torch.int64)
    for flag in (seen.hair, seen.facial_hair, seen.long_hair, seen.wrinkles, seen.glasses):
        code = 2 * code + flag
    return code.argsort(stable=True)


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


def _draw(scene: Scene, seen: Visible, size: int, closest: float) -> Tensor:
    """The light [N, 3, size, size] that reaches the sensor, back to front."""
    drawing = Drawing.begin(scene, size, closest)
    draw_body(drawing)
    drawing.only(seen.long_hair, draw_back_hair)
    draw_neck(drawing)
    portrait = draw_head(drawing)
    draw_ears(portrait)
    paint_cheeks(portrait)
    portrait.only(seen.wrinkles, paint_wrinkles)
    portrait.only(seen.freckles, paint_freckles)
    for mole in range(MOLES):
        portrait.within(Spot.FIRST_MOLE + mole, partial(paint_mole, number=mole))
    portrait.within(Spot.CHIN, paint_chin)
    portrait.only(seen.facial_hair, paint_facial_hair)
    portrait.within(Spot.MOUTH, paint_mouth)
    portrait.within(Spot.EYES, paint_eyes)
    portrait.within(Spot.NOSE, draw_nose)
    portrait.only(seen.hair, draw_hair)
    portrait.only(seen.hat, draw_hat)
    portrait.only(seen.brim, draw_brim)
    portrait.canvas.expose(scene.shot.light)
    portrait.only(seen.glasses, draw_glasses)
    portrait.only(seen.occluder, draw_occluder)
    return portrait.canvas.colour


def attributes(identities: Tensor, images: Tensor, *, seed: int, domain: str | Domain = DEFAULT) -> Tensor:
    """Which of `ATTRIBUTES` images number `images[i]` of people number `identities[i]` show: bool [N, attributes]."""
    _check(identities, images)
    domain = find_domain(domain)
    person, shot = latents(identities, images, seed, domain)
    return describe(person, shot, visible(person, shot, domain.capture))
