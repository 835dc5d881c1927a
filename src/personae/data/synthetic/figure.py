"""The figure: body, head with ears and nose, hair, hat."""

from functools import partial

import torch
from torch import Tensor

from personae.data.synthetic.anatomy import Part, Spot
from personae.data.synthetic.canvas import TINY, bell, ramp, step, wave
from personae.data.synthetic.geometry import WRAP, horner
from personae.data.synthetic.person import LONG, MEDIUM, SHORT
from personae.data.synthetic.scene import Drawing, Face, Portrait

FAR = 9.0  # behind everything
HAIR_SHADOW, HAT_SHADOW = 0.13, 0.22  # how far down they reach
SHARPNESS = 4  # of the highlight: squared so many times
EARS = ((Spot.LEFT_EAR, Part.LEFT_EAR), (Spot.RIGHT_EAR, Part.RIGHT_EAR))


def draw_body(drawing: Drawing) -> None:
    body = drawing.hit(Part.BODY)
    drawing.canvas.cover(body.cover, body.light(), drawing.shot.backdrop.cloth)


def draw_back_hair(drawing: Drawing) -> None:
    back = drawing.hit(Part.BACK_HAIR)
    drawing.canvas.cover(back.cover, back.light(), drawing.person.hair.colour, _strands(drawing).mul_(0.8))


def draw_neck(drawing: Drawing) -> None:
    neck = drawing.hit(Part.NECK)
    drawing.canvas.cover(neck.cover, neck.light(), drawing.person.skin.colour, 0.72)


def draw_ears(drawing: Portrait) -> None:
    for spot, part in EARS:
        drawing.within(spot, partial(_draw_ear, part=part))


def _draw_ear(drawing: Portrait, part: Part) -> None:
    ear = drawing.hit(part)
    nearer = ear.value(drawing.anatomy.parts.depth).sub_(drawing.face.depth)
    cover = ear.cover.mul_(drawing.person.hair.style != LONG).mul_(ramp(nearer, 0.05))
    drawing.canvas.cover(cover, ear.light(), drawing.person.skin.colour, 0.93)


def draw_head(drawing: Drawing) -> Portrait:
    """An ellipsoid that is widened or narrowed at each height by the person's profile."""
    anatomy, canvas, rays = drawing.anatomy, drawing.canvas, drawing.rays
    skull = anatomy.skull
    cosine, sine = drawing.shot.pose.roll.unbind(1)
    across, up = cosine * rays.u + sine * rays.v, cosine * rays.v - sine * rays.u
    a, b, _, d, _ = skull.outline[:, 0].unbind(1)
    bent, flat = up * b, (up * d).square_()

    def inside() -> Tensor:
        return (across * a).add_(bent).square_().add_(flat).neg_().add_(1)

    def linear(form: Tensor, height: Tensor) -> Tensor:
        per_u, per_v, _, per_t = form[:, 0].unbind(1)
        return (across * per_u).add_(up * per_v).add_(height * per_t)

    # the height is found on the plain ellipsoid; the profile there then tells how wide the head is
    level = linear(skull.y, inside().clamp_(min=TINY).sqrt_()).clamp_(-1, 1)
    across.div_(horner(anatomy.profile.unbind(1), level))
    within = inside()
    cover = (within * skull.edge[:, 0]).add_(0.5).clamp_(0, 1)
    height = within.clamp_(min=TINY).sqrt_()

    face = Face(across.new_empty(len(across), 4, *across.shape[1:]))
    x, y, z = (linear(form, height) for form in (skull.x, skull.y, skull.z))
    mirror = anatomy.highlight
    shine = (x * mirror[:, 0]).add_(y * mirror[:, 1]).add_(z * mirror[:, 2]).clamp_(min=0)
    for _ in range(SHARPNESS):
        shine.square_()
    face.x.copy_(x.sub_(drawing.person.head.lean * y))
    face.y.copy_(y)
    torch.mul(z.mul_(4).clamp_(0, 1), cover, out=face.front)
    torch.sub(linear(skull.depth, height), (1 - cover).mul_(FAR), out=face.depth)
    light = linear(skull.lambert, height).add_(WRAP / (1 + WRAP)).clamp_(min=0)
    shine.mul_(cover)
    canvas.cover(cover, light, drawing.person.skin.colour)
    canvas.shine.add_(shine)
    return Portrait(drawing.person, drawing.shot, anatomy, rays, canvas, drawing.closest, face)


def draw_nose(drawing: Portrait) -> None:
    """A shadow away from the light; bridge, tip and wings, blended in where they emerge; then the nostrils."""
    anatomy, nose, face = drawing.anatomy, drawing.person.nose, drawing.face
    parts, light = anatomy.parts, anatomy.light
    dx = (face.x - (anatomy.nose_shift - 0.12 * light[:, 0])).mul_(1 / 0.19)
    dy = (face.y - (nose.y - 0.02 - 0.10 * light[:, 1])).mul_(1 / 0.20)
    drawing.canvas.darken(bell(dx, dy).mul_(face.front), 0.28)
    depth = face.depth.clone()
    for part in (Part.BRIDGE, Part.TIP, Part.LEFT_WING, Part.RIGHT_WING):
        hit = drawing.hit(part)
        out = hit.value(parts.depth).sub_(depth)
        weight = hit.cover.mul_((out * (1 / 0.11)).clamp_(0, 1))
        depth.add_(out.mul_(weight))
        drawing.canvas.cover(weight, hit.light(), drawing.person.skin.colour)
    x, y = (drawing.rays.linear(form) for form in anatomy.nose_plane.unbind(1))
    apart = x.sub_(anatomy.nose_shift).abs_().sub_(nose.width * 0.48)
    nostrils = bell(apart.mul_(1 / 0.075), y.sub_(nose.y - 0.05).mul_(1 / 0.037))
    drawing.canvas.darken(nostrils.mul_(face.front), 0.8)


def _strands(drawing: Drawing) -> Tensor:
    """The texture of hair."""
    hair = drawing.person.hair
    x, y = (drawing.rays.linear(form) for form in drawing.anatomy.middle_plane.unbind(1))
    wisp = x.add_(y * (0.5 * hair.part)).add_(wave(1.1 * y).mul_(0.06 * hair.curl)).mul_(hair.strands)
    fine = wave((2.3 * wisp).add_(y.mul_(0.5))).mul_(0.08)
    return wave(wisp).mul_(0.09).add_(fine).add_(0.9)


def draw_hair(drawing: Drawing) -> None:
    """A shell around the skull, cut along the hairline, which casts a shadow on the forehead and has a sheen."""
    hair, parts = drawing.person.hair, drawing.anatomy.parts
    hit = drawing.hit(Part.HAIR)
    x, y, z = (hit.value(form) for form in (parts.x, parts.y, parts.z))
    width = drawing.person.head.width * 1.02 + 0.6 * hair.volume
    drop = (hair.style == SHORT) * 0.75 + (hair.style == MEDIUM) * 1.0 + (hair.style == LONG) * 1.6
    temple = (x / width).abs_().clamp_(max=1.2)
    side = temple.square().square_().mul_(temple).mul_(drop)
    grown = side.add_(y).sub_(hair.line + 0.5 * hair.volume - hair.fringe).sub_(x * hair.part)
    grown.add_(bell(x * (1 / 0.26)).mul_(0.10 * hair.widow)).add_(wave(x.mul_(hair.strands * 1.7)).mul_(0.02))
    below = ramp(grown + HAIR_SHADOW, HAIR_SHADOW)
    drawing.canvas.darken(below.mul_(hit.cover), 0.3)
    grown.div_(0.05 + 1 / drawing.rays.per_unit).clamp_(0, 1)
    behind = ramp(-0.12 - z, 0.08).mul_(ramp(y.add_(0.45 + 0.5 * (hair.style == LONG)), 0.1))
    light = hit.light()
    light.add_(light.square().square_().mul_(0.3))
    drawing.canvas.cover(torch.maximum(grown, behind).mul_(hit.cover), light, hair.colour, _strands(drawing))


def draw_hat(drawing: Portrait) -> None:
    hat, parts, face = drawing.person.hat, drawing.anatomy.parts, drawing.face
    shadow = ramp(face.y - (hat.line - HAT_SHADOW), HAT_SHADOW).mul_(face.front)
    drawing.canvas.darken(shadow, 0.3 + 0.25 * hat.brim)
    hit = drawing.hit(Part.HAT)
    height = hit.value(parts.y).sub_(hat.line)
    band = ramp(0.12 - height, 0.02).mul_(-0.45).add_(1)
    drawing.canvas.cover(step(height, drawing.rays.per_unit).mul_(hit.cover), hit.light(), hat.colour, band)


def draw_brim(drawing: Portrait) -> None:
    brim = drawing.hit(Part.BRIM)
    drawing.canvas.cover(brim.cover, brim.light(), drawing.person.hat.colour, 0.7)
