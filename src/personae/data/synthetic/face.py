"""What is painted on the face: skin, moles, creases, facial hair, mouth, eyes and brows."""

import torch
from torch import Tensor

from personae.data.synthetic.canvas import bell, ramp, step, wave
from personae.data.synthetic.person import CHIN_CURTAIN, FULL_BEARD, GOATEE, MOUSTACHE
from personae.data.synthetic.scene import Portrait

BLUSH, LIPS = (1.05, 0.62, 0.62), (0.92, 0.62, 0.62)
Place = Tensor | float


def _tinted(drawing: Portrait, tint: tuple[float, float, float]) -> Tensor:
    skin = drawing.person.skin.colour
    return skin * torch.tensor(tint, device=skin.device).view(1, 3, 1, 1)


def _raise(drawing: Portrait, height: Place, x: Place, y: Place, width: float, length: float) -> None:
    """Light as it falls on a hill (or a hollow) of the face, mirrored left and right, with these half-extents."""
    face, canvas, light = drawing.face, drawing.canvas, drawing.anatomy.light
    dx, dy = (face.aside - x).mul_(1 / width), (face.y - y).mul_(1 / length)
    slope = (
        (dx * (4 / width * height)).mul_(face.side).mul_(light[:, 0]).add_(dy * (light[:, 1] * (4 / length * height)))
    )
    near = dx.square_().add_(dy.square_()).neg_().add_(1).clamp_(min=0)
    canvas.light.add_(near.mul_(slope).mul_(face.front)).clamp_(min=0)


def paint_cheeks(drawing: Portrait) -> None:
    face, rosy = drawing.face, drawing.person.skin.rosy
    flush = bell((face.aside - 0.40).mul_(1 / 0.33), (face.y + 0.30).mul_(1 / 0.29)).mul_(0.12 + 0.45 * rosy)
    drawing.canvas.paint(flush.mul_(face.front), _tinted(drawing, BLUSH))
    _raise(drawing, 0.045 + 0.03 * drawing.shot.expression.smile.clamp(min=0), 0.40, -0.22, 0.35, 0.27)


def paint_mole(drawing: Portrait, number: int) -> None:
    skin, face = drawing.person.skin, drawing.face
    radius = skin.mole_radius[:, number]
    dx, dy = face.x - skin.mole_x[:, number], face.y - skin.mole_y[:, number]
    inside = dx.square_().add_(dy.square_()).neg_().add_(radius.square())
    spot = step(inside, drawing.rays.per_unit * (0.36 / radius.clamp(min=0.01)))
    drawing.canvas.darken(spot.mul_(face.front), 0.52 * (radius > 0))


def paint_freckles(drawing: Portrait) -> None:
    skin, face = drawing.person.skin, drawing.face
    x, y = face.x, face.y
    spots = wave((6.5 * x).add_(wave((2.7 * y).add_(skin.phase)).mul_(1.4)))
    spots.mul_(wave((7.5 * y).add_(wave((3.7 * x).add_(skin.phase)).mul_(1.1))))
    spots.sub_(0.45).clamp_(0, 0.4).mul_(bell((face.aside - 0.25).mul_(1 / 0.55), (y + 0.25).mul_(1 / 0.35)))
    drawing.canvas.darken(spots.mul_(face.front), 0.8 * skin.freckles)


def paint_wrinkles(drawing: Portrait) -> None:
    """Lines across the forehead and beside the eyes."""
    skin, eyes, face = drawing.person.skin, drawing.person.eyes, drawing.face
    aside, y = face.aside, face.y
    forehead = wave(aside.square().mul_(-0.1).add_(y).mul_(9.9).add_(skin.phase)).clamp_(min=0).square_()
    forehead.mul_(bell(aside * (1 / 0.62), (y - 0.38).mul_(1 / 0.21)))
    ex, ey = aside - (eyes.x + 0.21), y - eyes.y
    crow = wave((ey * 12).add_(skin.phase)).clamp_(min=0).square_().mul_(bell(ex.mul_(1 / 0.11), ey.mul_(1 / 0.15)))
    drawing.canvas.darken(forehead.add_(crow).mul_(face.front), 0.3 * skin.wrinkles.clamp(max=1.5))


def paint_chin(drawing: Portrait) -> None:
    face = drawing.face
    _raise(drawing, 0.05, 0.0, -0.86, 0.31, 0.22)
    cleft = bell(face.x * (1 / 0.028), (face.y + 0.86).mul_(1 / 0.11))
    drawing.canvas.darken(cleft.mul_(face.front), 0.25 * drawing.person.head.cleft)


def _above_lips(drawing: Portrait) -> Tensor:
    """Height above the line between the lips."""
    mouth, face = drawing.person.mouth, drawing.face
    curve = (face.x / mouth.width).square_().sub_(0.45).mul_(0.055 * drawing.shot.expression.smile)
    return face.y - curve.add_(mouth.skew * face.x).add_(mouth.y)


def paint_facial_hair(drawing: Portrait) -> None:
    person, face, per_unit = drawing.person, drawing.face, drawing.rays.per_unit
    beard, mouth, aside, y = person.beard, person.mouth, face.aside, face.y
    jaw = ramp((aside - 0.42).clamp_(min=0).mul_(1.5).sub_(y).sub_(0.34), 0.12)
    jaw.mul_(ramp(-0.05 - y, 0.2)).mul_(bell(aside * (1 / 0.5), (y + 0.44).mul_(1 / 0.2)).mul_(-0.9).add_(1))
    middle = (y - _above_lips(drawing)).add_(person.nose.y - 0.085 + mouth.upper).mul_(0.5)
    lip = (y - middle).abs_().add_((aside - 0.1).clamp_(min=0).mul_(0.1)).neg_().add_(0.035 + 0.25 * mouth.upper)
    lip = step(lip, per_unit).mul_(step(1.1 * mouth.width - aside, per_unit))
    chin = ramp(0.21 - aside, 0.06).mul_(ramp(mouth.y - 0.02 - y, 0.06))
    everywhere = torch.maximum(jaw, lip)
    full, curtain, tache, tuft = (beard.kind == code for code in (FULL_BEARD, CHIN_CURTAIN, MOUSTACHE, GOATEE))
    drawing.canvas.darken((everywhere * face.front).mul_(beard.stubble * ~full), 0.5)
    grown = everywhere.mul_(full).add_(jaw.mul_(curtain)).add_(lip.mul_(tache)).add_(chin.mul_(tuft))
    grown.mul_(beard.density).mul_(face.front)
    drawing.canvas.paint(grown, person.hair.colour * 0.75)
    bristle = wave((11 * face.x).add_(wave(5 * y).mul_(0.5))).mul_(wave((10 * y).add_(wave(6 * face.x).mul_(0.3))))
    drawing.canvas.darken(bristle.mul_(-0.18).add_(0.18).mul_(grown), 1.0)


def paint_mouth(drawing: Portrait) -> None:
    mouth, expression, face, canvas = drawing.person.mouth, drawing.shot.expression, drawing.face, drawing.canvas
    per_unit, smile, skin = drawing.rays.per_unit, expression.smile.clamp(min=0), drawing.person.skin
    _raise(drawing, 0.020, 0.0, mouth.y - 0.045, 0.28, 0.066)
    _raise(drawing, -0.022, 0.0, mouth.y - 0.13, 0.28, 0.077)
    nose_y = drawing.person.nose.y
    fold = (nose_y - face.y).clamp_(0, 1).mul_(-0.55).add_(face.aside).sub_(0.17).mul_(1 / 0.035)
    fold = bell(fold).mul_(bell((face.y - 0.5 * (nose_y + mouth.y)).mul_(1 / 0.24)))
    canvas.darken(fold.mul_(face.front), (0.06 + 0.25 * skin.wrinkles + 0.1 * smile).clamp(max=0.4))
    dimple = bell((face.aside - mouth.width - 0.11).mul_(1 / 0.03), (face.y - mouth.y - 0.03).mul_(1 / 0.08))
    canvas.darken(dimple.mul_(face.front), 0.4 * mouth.dimple * smile.clamp(max=1))

    above = _above_lips(drawing)
    taper = (face.x / mouth.width).clamp_(-1, 1).square_().neg_().add_(1)
    inside = step(mouth.width - face.aside, per_unit).mul_(face.front)
    opening = expression.mouth_open * taper
    top = bell(face.x * (1 / 0.066)).mul_(-0.3 * mouth.bow).add_(1).mul_(taper)
    top.mul_(mouth.upper * (1 - 0.25 * smile)).add_(0.6 * opening)
    bottom = (taper * -0.35).add_(1.35).mul_(taper).mul_(mouth.lower).add_(opening)
    lips = step(torch.minimum(top.sub_(above), bottom.add_(above)), per_unit).mul_(inside)
    natural = _tinted(drawing, LIPS)
    canvas.paint(lips, natural + 0.8 * mouth.lipstick.unsqueeze(1) * (mouth.lipstick_colour - natural))
    hole = step(torch.minimum((0.6 * opening).sub_(above), above + opening), per_unit).mul_(inside)
    hole.mul_((expression.mouth_open * 60).clamp(0, 1))
    canvas.paint(hole, skin.colour * 0.12)
    canvas.paint(step((0.1 * opening).add_(above), per_unit).mul_(hole), torch.full_like(skin.colour, 0.88))
    line = bell(opening.mul_(0.5).add_(above).mul_(1 / 0.02)).mul_(inside)
    canvas.darken(line.mul_(hole.neg_().add_(1)), 0.56)


def paint_eyes(drawing: Portrait) -> None:
    eyes, expression, face, canvas = drawing.person.eyes, drawing.shot.expression, drawing.face, drawing.canvas
    per_unit, front = drawing.rays.per_unit, face.front
    ex, ey = face.aside - eyes.x, face.y - eyes.y - eyes.skew * face.side
    _raise(drawing, -0.055, eyes.x - 0.02, eyes.y + 0.01, 0.29, 0.2)
    _raise(drawing, 0.028 * drawing.person.brows.ridge, 0.24, eyes.y + 0.17, 0.36, 0.11)
    canvas.darken(bell((ex + 0.03).mul_(1 / 0.29), (ey - 0.03).mul_(1 / 0.19)).mul_(front), 0.126)
    bag = bell(ex * (1 / 0.22), ex.square().mul_(0.5).add_(ey).add_(0.105).mul_(1 / 0.04))
    canvas.darken(bag.mul_(front), 0.29 * eyes.bags)

    square = eyes.tilt.square() * 0.25
    cosine, sine = (1 - square) / (1 + square), eyes.tilt / (1 + square)
    along, over = (cosine * ex).add_(sine * ey), (cosine * ey).sub_(sine * ex)
    across = (along / eyes.width).clamp_(-1, 1)
    arc = across.square().neg_().add_(1).mul_(eyes.height)
    above = over - (across * -0.25).add_(1.15).mul_(arc).mul_(expression.eye_open)
    below = (across * 0.1).add_(0.62).mul_(arc).mul_(1 - 0.35 * expression.smile.clamp(0, 1)).add_(over)
    out = along.abs_()
    eye = step(torch.minimum(-above, below), per_unit).mul_(step(eyes.width - out, per_unit)).mul_(front)
    canvas.paint(eye, torch.full_like(eyes.iris, 0.90))
    dx, dy = ex - face.side * expression.gaze_x, ey - (0.006 + expression.gaze_y)
    radius = dx.square_().add_(dy.square_()).sqrt_()
    iris = step(eyes.iris_radius - radius, per_unit).mul_(eye)
    canvas.paint(iris, eyes.iris)
    canvas.darken((radius / eyes.iris_radius).clamp_(0, 1).mul_(-0.6).add_(0.4).mul_(iris), 1.0)
    canvas.darken(step(0.45 * eyes.iris_radius - radius, per_unit).mul_(iris), 0.95)
    glint = bell((ex - 0.02 * face.side).mul_(1 / 0.024), (ey - 0.03).mul_(1 / 0.024))
    canvas.paint(glint.mul_(eye).mul_(0.8), torch.ones_like(eyes.iris))
    canvas.darken(bell(above * (1 / 0.066)).mul_(eye), 0.28)
    near = step(1.08 * eyes.width - out, per_unit).mul_(front)
    lash = bell(above / (0.024 + 0.016 * eyes.lash)).mul_(near)
    canvas.darken(lash, 0.9 * (0.55 + 0.45 * eyes.lash).clamp(0, 1))
    canvas.darken(bell((over - 1.2 * arc).sub_(0.035).mul_(1 / 0.024)).mul_(near), 0.3 * eyes.fold)
    canvas.darken(bell(below.mul_(1 / 0.024)).mul_(near), 0.17)
    _paint_brows(drawing, ex, ey)


def _paint_brows(drawing: Portrait, ex: Tensor, ey: Tensor) -> None:
    """At a distance of (ex, ey) from the middle of an eye."""
    brows, expression, per_unit = drawing.person.brows, drawing.shot.expression, drawing.rays.per_unit
    bx = ex - brows.shift
    along = (bx / brows.width).clamp_(-1, 1)
    middle = (along - 0.2).square_().neg_().add_(1).mul_(brows.arch).add_((brows.tilt + expression.frown) * bx)
    off = (ey - (brows.y + expression.brow_raise)).sub_(middle).abs_()
    thick = along.add_(0.15).clamp_(min=0).mul_(-0.55).add_(1).mul_(brows.thickness)
    brow = step(thick.sub_(off), per_unit).mul_(step(brows.width - bx.abs_(), per_unit))
    colour = drawing.person.hair.colour * 0.6 + 0.05 * drawing.person.skin.colour
    drawing.canvas.paint(brow.mul_(drawing.face.front).mul_(0.88), colour)
