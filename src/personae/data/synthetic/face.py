"""What is painted on the face: skin, eyes, brows, mouth, facial hair; and its relief."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.synthetic.canvas import bell, ramp, step, wave
from personae.data.synthetic.latents import Latents
from personae.data.synthetic.people import CHIN_CURTAIN, FULL_BEARD, GOATEE, MOUSTACHE
from personae.data.synthetic.scene import Stage

BLUSH, LIPS = (1.05, 0.62, 0.62), (0.92, 0.62, 0.62)


@dataclass(frozen=True)
class Face(Latents):
    """The visible front of the head: coordinates of each pixel (`ax` and `side` are the size and sign of x), depth
    along the ray, how much of it is seen, and pixels per unit on it."""

    x: Tensor
    ax: Tensor
    side: Tensor
    y: Tensor
    depth: Tensor
    front: Tensor
    per_unit: Tensor


def smile_line(stage: Stage, face: Face) -> Tensor:
    """Height above the line between the lips."""
    mouth, smile = stage.person.mouth, stage.shot.expression.smile
    curve = (face.x / mouth.width).square_().sub_(0.45).mul_(0.055 * smile)
    return face.y - curve.add_(mouth.skew * face.x).add_(mouth.y)


def paint_skin(stage: Stage, face: Face) -> None:
    person, expression = stage.person, stage.shot.expression
    skin, eyes, mouth, nose = person.skin, person.eyes, person.mouth, person.nose
    ax, y = face.ax, face.y
    smile = expression.smile.clamp(min=0)
    flush = bell((ax - 0.40).mul_(1 / 0.33), (y + 0.30).mul_(1 / 0.29)).mul_(0.12 + 0.45 * skin.rosy)
    stage.canvas.paint(flush.mul_(face.front), skin.colour * skin.colour.new_tensor(BLUSH).view(1, 3, 1, 1))
    for index in range(skin.mark_x.shape[1]):
        radius = skin.mark_radius[:, index]
        dx, dy = face.x - skin.mark_x[:, index], y - skin.mark_y[:, index]
        spot = step(radius - dx.square_().add_(dy.square_()).sqrt_(), face.per_unit)
        stage.canvas.darken(spot.mul_(face.front), 0.52 * (radius > 0))

    ex, ey = ax - eyes.x, y - eyes.y - eyes.skew * face.side
    lines = wave((y - (ax * ax).mul_(0.1)).mul_(9.9).add_(skin.phase)).clamp_(min=0).square_()
    lines.mul_(bell(ax * (1 / 0.62), (y - 0.38).mul_(1 / 0.21)))
    crow = wave((ey * 12).add_(skin.phase)).clamp_(min=0).square_()
    crow.mul_(bell((ex - 0.21).mul_(1 / 0.11), ey * (1 / 0.15)))
    fold_x = (nose.y - y).clamp_(0, 1).mul_(0.55).add_(0.17)
    middle = 0.5 * (nose.y + mouth.y)
    fold = bell((ax - fold_x).mul_(1 / 0.035)).mul_(bell((y - middle).mul_(1 / 0.24)))
    creases = lines.mul_(0.5 * skin.wrinkles + 4 * expression.brow_raise.clamp(0, 0.06))
    creases.add_(crow.mul_(0.5 * skin.wrinkles)).add_(fold.mul_(0.12 + 0.5 * skin.wrinkles + 0.2 * smile))
    stage.canvas.darken(creases.clamp_(0, 0.75).mul_(face.front), 0.5)
    dimple = bell((ax - mouth.width - 0.11).mul_(1 / 0.03), (y - mouth.y - 0.03).mul_(1 / 0.08))
    stage.canvas.darken(dimple.mul_(face.front), 0.4 * mouth.dimple * smile.clamp(max=1))
    cleft = bell(face.x * (1 / 0.028), (y + 0.86).mul_(1 / 0.11))
    stage.canvas.darken(cleft.mul_(face.front), 0.25 * person.head.cleft)
    socket = bell((ex + 0.03).mul_(1 / 0.35), (ey - 0.03).mul_(1 / 0.19))
    stage.canvas.darken(socket.mul_(face.front), 0.126)
    bag = bell(ex * (1 / 0.22), (ey + 0.105).add_(ex.square().mul_(0.5)).mul_(1 / 0.04))
    stage.canvas.darken(bag.mul_(face.front), 0.29 * eyes.bags)


def paint_freckles(stage: Stage, face: Face) -> None:
    skin, x, y = stage.person.skin, face.x, face.y
    spots = wave((6.5 * x).add_(wave((2.7 * y).add_(skin.phase)).mul_(1.4)))
    spots.mul_(wave((7.5 * y).add_(wave((3.7 * x).add_(skin.phase)).mul_(1.1))))
    spots.sub_(0.45).clamp_(0, 0.4).mul_(bell((face.ax - 0.25).mul_(1 / 0.55), (y + 0.25).mul_(1 / 0.35)))
    stage.canvas.darken(spots.mul_(face.front), 0.8 * skin.freckles)


def grain(face: Face) -> Tensor:
    """The texture of short hair."""
    first = wave((11 * face.x).add_(wave(5 * face.y).mul_(0.5)))
    return first.mul_(wave((10 * face.y).add_(wave(6 * face.x).mul_(0.3)))).mul_(0.18).add_(0.82)


def paint_facial_hair(stage: Stage, face: Face) -> None:
    person = stage.person
    beard, mouth, nose, ax, y = person.beard, person.mouth, person.nose, face.ax, face.y
    kind = beard.kind
    jaw = ramp((ax - 0.42).clamp_(min=0).mul_(1.5).sub_(y).sub_(0.34), 0.12)
    jaw.mul_(ramp(-0.05 - y, 0.2)).mul_(bell(ax * (1 / 0.5), (y + 0.44).mul_(1 / 0.2)).mul_(-0.9).add_(1))
    line = y - smile_line(stage, face)
    lip = (line.add_(nose.y - 0.085 + mouth.upper)).mul_(-0.5).add_(y).abs_()
    lip.add_((ax - 0.1).clamp_(min=0).mul_(0.1)).neg_().add_(0.035 + 0.25 * mouth.upper)
    lip = step(lip, face.per_unit).mul_(step(mouth.width * 1.1 - ax, face.per_unit))
    chin = ramp(0.21 - ax, 0.06).mul_(ramp(mouth.y - 0.02 - y, 0.06))
    everywhere = torch.maximum(jaw, lip)
    full, curtain, tache, tuft = ((kind == code) for code in (FULL_BEARD, CHIN_CURTAIN, MOUSTACHE, GOATEE))
    stubble = (beard.stubble * ~full) * everywhere
    stage.canvas.darken(stubble.mul_(face.front), 0.5)
    grown = (everywhere * full).add_(jaw.mul_(curtain)).add_(lip.mul_(tache)).add_(chin.mul_(tuft))
    grown.mul_(beard.density).mul_(face.front)
    stage.canvas.paint(grown, person.hair.colour * 0.85)
    stage.canvas.darken(grown.mul_(1 - grain(face)), 1.0)


def paint_mouth(stage: Stage, face: Face) -> None:
    mouth, expression, skin = stage.person.mouth, stage.shot.expression, stage.person.skin.colour
    per_unit, smile = face.per_unit, expression.smile.clamp(min=0)
    gap = smile_line(stage, face)
    taper = (face.x / mouth.width).clamp_(-1, 1).square_().neg_().add_(1)
    inside = step(mouth.width - face.ax, per_unit).mul_(face.front)
    opening = expression.mouth_open * taper
    cupid = bell(face.x * (1 / 0.066)).mul_(-0.3 * mouth.bow).add_(1).mul_(taper)
    top = cupid.mul_(mouth.upper * (1 - 0.25 * smile)).add_(0.6 * opening)
    bottom = (taper * -0.35).add_(1.35).mul_(taper).mul_(mouth.lower).add_(opening)
    lips = step(torch.minimum(top.sub_(gap), bottom.add_(gap)), per_unit).mul_(inside)
    natural = skin * skin.new_tensor(LIPS).view(1, 3, 1, 1)
    stage.canvas.paint(lips, natural + 0.8 * mouth.lipstick.unsqueeze(1) * (mouth.lipstick_colour - natural))
    hole = step(torch.minimum((0.6 * opening).sub_(gap), gap + opening), per_unit).mul_(inside)
    hole.mul_((expression.mouth_open * 60).clamp(0, 1))
    stage.canvas.paint(hole, skin * 0.12)
    teeth = step((0.1 * opening).add_(gap), per_unit).mul_(hole)
    stage.canvas.paint(teeth, torch.full_like(skin, 0.88))
    line = bell(opening.mul_(0.5).add_(gap).mul_(1 / 0.02)).mul_(inside).mul_(hole.neg_().add_(1))
    stage.canvas.darken(line, 0.56)


def paint_eyes(stage: Stage, face: Face) -> None:
    eyes, expression, brows = stage.person.eyes, stage.shot.expression, stage.person.brows
    per_unit, front = face.per_unit, face.front
    ex, ey = face.ax - eyes.x, face.y - eyes.y - eyes.skew * face.side
    square = eyes.tilt.square() * 0.25
    cosine, sine = (1 - square) / (1 + square), eyes.tilt / (1 + square)
    a = (cosine * ex).add_(sine * ey)
    b = (cosine * ey).sub_(sine * ex)
    across = (a / eyes.width).clamp_(-1, 1)
    arc = across.square().neg_().add_(1).mul_(eyes.height)
    above = b - (across * -0.25).add_(1.15).mul_(arc).mul_(expression.eye_open)
    below = (across * 0.1).add_(0.62).mul_(arc).mul_(1 - 0.35 * expression.smile.clamp(0, 1)).add_(b)
    width = a.abs_()
    eye = step(torch.minimum(-above, below), per_unit).mul_(step(eyes.width - width, per_unit)).mul_(front)
    stage.canvas.paint(eye, torch.full_like(eyes.iris, 0.90))
    dx, dy = ex - face.side * expression.gaze_x, ey - (0.006 + expression.gaze_y)
    rho = dx.square_().add_(dy.square_()).sqrt_()
    iris = step(eyes.iris_radius - rho, per_unit).mul_(eye)
    stage.canvas.paint(iris, eyes.iris)
    stage.canvas.darken((rho / eyes.iris_radius).clamp_(0, 1).mul_(-0.6).add_(0.4).mul_(iris), 1.0)
    stage.canvas.darken(step(0.45 * eyes.iris_radius - rho, per_unit).mul_(iris), 0.95)
    glint = bell((ex - 0.02 * face.side).mul_(1 / 0.024), (ey - 0.03).mul_(1 / 0.024)).mul_(0.8)
    stage.canvas.paint(glint.mul_(eye), torch.ones_like(eyes.iris))
    near = step(1.08 * eyes.width - width, per_unit).mul_(front)
    stage.canvas.darken(bell(above * (1 / 0.066)).mul_(eye), 0.28)
    lash = bell(above / (0.024 + 0.016 * eyes.lash)).mul_(near)
    stage.canvas.darken(lash, 0.9 * (0.55 + 0.45 * eyes.lash).clamp(0, 1))
    fold = bell((b - 1.2 * arc).sub_(0.035).mul_(1 / 0.024)).mul_(near)
    stage.canvas.darken(fold, 0.3 * eyes.fold)
    stage.canvas.darken(bell(below.mul_(1 / 0.024)).mul_(near), 0.17)

    bx = ex - brows.shift
    along = (bx / brows.width).clamp_(-1, 1)
    middle = (along - 0.2).square_().neg_().add_(1).mul_(brows.arch).add_((brows.tilt + expression.frown) * bx)
    thin = along.add_(0.15).clamp_(min=0).mul_(-0.55).add_(1).mul_(brows.thickness)
    off = (ey - (brows.y + expression.brow_raise)).sub_(middle).abs_()
    brow = step(thin.sub_(off), per_unit).mul_(step(brows.width - bx.abs_(), per_unit)).mul_(front).mul_(0.88)
    stage.canvas.paint(brow, stage.person.hair.colour * 0.6 + 0.05 * stage.person.skin.colour)


def relief(stage: Stage, face: Face) -> Tensor:
    """The change of light by hills and hollows of the face, mirrored left and right."""
    person, light = stage.person, stage.geometry.light
    eyes, mouth, smile = person.eyes, person.mouth, stage.shot.expression.smile.clamp(min=0)
    hills: tuple[tuple[Tensor | float, Tensor | float, Tensor | float, float, float], ...] = (
        (0.045 + 0.03 * smile, 0.40, -0.22, 0.16, 0.12),
        (-0.055, eyes.x - 0.02, eyes.y + 0.01, 0.15, 0.09),
        (0.028 * person.brows.ridge, 0.24, eyes.y + 0.17, 0.22, 0.05),
        (0.05, 0.0, -0.86, 0.14, 0.10),
        (0.020, 0.0, mouth.y - 0.045, 0.13, 0.03),
        (-0.022, 0.0, mouth.y - 0.13, 0.13, 0.035),
    )
    sideways = light[:, 0] * face.side
    total = torch.zeros_like(face.x)
    for height, cx, cy, sx, sy in hills:
        dx, dy = (face.ax - cx).mul_(0.45 / sx), (face.y - cy).mul_(0.45 / sy)
        slope = (dx * (1.8 / sx)).mul_(sideways).add_(dy * (light[:, 1] * (1.8 / sy)))
        near = dx.square_().add_(dy.square_()).neg_().add_(1).clamp_(min=0)
        total.add_(near.mul_(slope).mul_(height))
    return total.mul_(face.front)
