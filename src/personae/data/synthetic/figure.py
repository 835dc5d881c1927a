"""The figure: body, head with ears and nose, hair, hat."""

import torch
from torch import Tensor

from personae.data.synthetic.canvas import bell, ramp, step, wave
from personae.data.synthetic.face import Face, relief
from personae.data.synthetic.geometry import WRAP, Part
from personae.data.synthetic.people import LONG, MEDIUM, SHORT
from personae.data.synthetic.scene import Stage


class Skull:
    """Where the rays meet the head: an ellipsoid, widened or narrowed at each height by the person's profile."""

    def __init__(self, stage: Stage) -> None:
        geometry, conics = stage.geometry, stage.geometry.skull
        cosine, sine = stage.shot.pose.roll.unbind(1)
        across = cosine * stage.rays.u + sine * stage.rays.v
        self.up = up = cosine * stage.rays.v - sine * stage.rays.u
        a, b, _, d, _ = conics.outline[:, 0].unbind(1)
        bent, flat = up * b, (up * d).square_()
        height = (across * a).add_(bent).square_().add_(flat).neg_().add_(1).clamp_(min=0).sqrt_()
        level = self._linear(conics.y[:, 0], across, height).clamp_(-1, 1)
        *lower, highest = geometry.profile.unbind(1)
        width = highest * level
        for coefficient in reversed(lower[1:]):
            width = width.add_(coefficient).mul_(level)
        across.div_(width.add_(lower[0]))

        inside = (across * a).add_(bent).square_().add_(flat).neg_().add_(1)
        self.cover = (inside * conics.edge[:, 0]).add_(0.5).clamp_(0, 1)
        height = inside.clamp_(min=0).sqrt_()
        self.x, self.y, self.z, self.depth = (
            self._linear(form[:, 0], across, height) for form in (conics.x, conics.y, conics.z, conics.depth)
        )
        self.light = self._linear(conics.lambert[:, 0], across, height).add_(WRAP / (1 + WRAP))

    def _linear(self, form: Tensor, across: Tensor, height: Tensor) -> Tensor:
        a, b, _, t = form.unbind(1)
        return (across * a).add_(self.up * b).add_(height * t)


def draw_body(stage: Stage) -> None:
    body = stage.hit(Part.BODY)
    stage.canvas.cover(body.cover, body.light(), stage.shot.backdrop.cloth)


def draw_back_hair(stage: Stage) -> None:
    back = stage.hit(Part.BACK_HAIR)
    stage.canvas.cover(back.cover, back.light(), stage.person.hair.colour, strands(stage).mul_(0.8))


def draw_head(stage: Stage) -> Face:
    """Neck, ears and head, which share the colour of the skin."""
    person, parts = stage.person, stage.geometry.parts
    skull, neck = Skull(stage), stage.hit(Part.NECK)
    ears = [stage.hit(part) for part in (Part.LEFT_EAR, Part.RIGHT_EAR)]
    bare = person.hair.style != LONG
    for ear in ears:
        ear.cover.mul_(bare)
    outline = torch.maximum(torch.maximum(neck.cover, skull.cover), torch.maximum(ears[0].cover, ears[1].cover))
    stage.canvas.cover(outline, neck.light(), person.skin.colour, 0.72)
    lit = [ear.light() for ear in ears]
    for ear, light in zip(ears, lit, strict=True):
        stage.canvas.cover(ear.cover, light, tone=0.93)
    x = skull.x - person.head.lean * skull.y
    face = Face(
        x=x,
        ax=x.abs(),
        side=x.sign(),
        y=skull.y,
        depth=skull.depth,
        front=(skull.z * 4).clamp_(0, 1).mul_(skull.cover),
        per_unit=stage.rays.per_unit * (1 / 1.4),
    )
    stage.canvas.cover(skull.cover, skull.light.add_(relief(stage, face)).clamp_(min=0))
    for ear, light in zip(ears, lit, strict=True):
        nearer = ear.value(parts.depth).sub_(skull.depth)
        stage.canvas.cover(ear.cover.mul_(ramp(nearer, 0.05)), light, tone=0.93)
    toward = stage.geometry.highlight
    facing = (skull.x * toward[:, 0]).add_(skull.y * toward[:, 1]).add_(skull.z * toward[:, 2]).clamp_(min=0)
    for _ in range(4):
        facing = facing.square_()
    stage.canvas.shine.copy_(facing.mul_(skull.cover))
    return face


def draw_nose(stage: Stage, face: Face) -> None:
    """Bridge, tip and wings, blended in where they emerge from the face; then the nostrils."""
    parts, nose = stage.geometry.parts, stage.person.nose
    depth = face.depth
    for part in (Part.BRIDGE, Part.TIP, Part.LEFT_WING, Part.RIGHT_WING):
        hit = stage.hit(part)
        out = hit.value(parts.depth).sub_(depth)
        weight = ramp(out.clone(), 0.11).mul_(hit.cover)
        depth = depth + out.mul_(weight)
        stage.canvas.cover(weight, hit.light(), stage.person.skin.colour)
    x, y = (stage.rays.linear(form) for form in stage.geometry.face_plane.unbind(1))
    apart = x.sub_(stage.geometry.nose_shift).abs_().sub_(nose.width * 0.48)
    nostrils = bell(apart.mul_(1 / 0.075), y.sub_(nose.y - 0.05).mul_(1 / 0.037))
    stage.canvas.darken(nostrils.mul_(face.front), 0.8)


def strands(stage: Stage) -> Tensor:
    """The texture of long hair."""
    hair = stage.person.hair
    x, y = (stage.rays.linear(form) for form in stage.geometry.flat.unbind(1))
    wisp = x.add_(y * (0.5 * hair.part)).add_(wave(1.1 * y).mul_(0.06 * hair.curl)).mul_(hair.strands)
    fine = wave((2.3 * wisp).add_(y.mul_(0.5))).mul_(0.08)
    return wave(wisp).mul_(0.09).add_(fine).add_(0.9)


def draw_hair(stage: Stage) -> None:
    """A shell around the skull, cut along the hairline."""
    hair, parts = stage.person.hair, stage.geometry.parts
    hit = stage.hit(Part.HAIR)
    x, y, z = (hit.value(form) for form in (parts.x, parts.y, parts.z))
    width = stage.person.head.width * 1.02 + 0.6 * hair.volume
    drop = (hair.style == SHORT) * 0.75 + (hair.style == MEDIUM) * 1.0 + (hair.style == LONG) * 1.6
    temple = (x / width).abs_().clamp_(max=1.2)
    side = temple.square().square_().mul_(temple).mul_(drop)
    grown = side.add_(y).sub_(hair.line + 0.5 * hair.volume - hair.fringe).sub_(x * hair.part)
    grown.add_(bell(x * (1 / 0.26)).mul_(0.10 * hair.widow)).add_(wave(x.mul_(hair.strands * 1.7)).mul_(0.02))
    grown.div_(0.05 + 1 / stage.rays.per_unit).clamp_(0, 1)
    behind = ramp(-0.12 - z, 0.08).mul_(ramp(y.add_(0.45 + 0.5 * (hair.style == LONG)), 0.1))
    stage.canvas.cover(torch.maximum(grown, behind).mul_(hit.cover), hit.light(), hair.colour, strands(stage))


def draw_hat(stage: Stage) -> None:
    hat, parts = stage.person.hat, stage.geometry.parts
    hit = stage.hit(Part.HAT)
    height = hit.value(parts.y).sub_(hat.line)
    band = ramp(0.12 - height, 0.02).mul_(-0.45).add_(1)
    stage.canvas.cover(step(height, stage.rays.per_unit).mul_(hit.cover), hit.light(), hat.colour, band)


def draw_brim(stage: Stage) -> None:
    brim = stage.hit(Part.BRIM)
    stage.canvas.cover(brim.cover, brim.light(), stage.person.hat.colour, 0.7)
