"""What is between the face and the camera: glasses, hands and other things; drawn on the lit image."""

import torch

from personae.data.synthetic.canvas import TINY, blend, step, wave
from personae.data.synthetic.person import LONG
from personae.data.synthetic.scene import Portrait, picture_axes


def draw_glasses(drawing: Portrait) -> None:
    """Rounded lenses on a plane in front of the eyes, with bridge and arms."""
    image = drawing.canvas.colour
    glasses, eyes, per_unit = drawing.person.glasses, drawing.person.eyes, drawing.rays.per_unit
    x, y = (drawing.rays.linear(form) for form in drawing.anatomy.glasses_plane.unbind(1))
    y.sub_(eyes.y - 0.015)
    ax = x.abs()
    corner = glasses.roundness * glasses.lens_height
    mx = (ax - eyes.x).abs_().sub_(glasses.lens_width - corner)
    my = y.abs().sub_(glasses.lens_height - corner)
    lens = torch.maximum(mx, my).clamp_(max=0).sub_(corner)
    lens.add_(mx.clamp_(min=0).square_().add_(my.clamp_(min=0).square_()).add_(TINY).sqrt_())
    bridge = step(glasses.rim - (y - 0.05).abs_(), per_unit).mul_(ax < eyes.x - glasses.lens_width)
    arm = step(glasses.rim - (drawing.face.y - (eyes.y + 0.03)).abs_(), per_unit).mul_(drawing.face.front)
    arm.mul_(ax > eyes.x + glasses.lens_width).mul_(drawing.person.hair.style != LONG)
    inside = step(-lens, per_unit)
    glare = wave(x.add_(y).mul_(0.8).add_(drawing.shot.backdrop.phase)).clamp_(min=0).square_().square_()
    keep = (inside * drawing.shot.lens_tint).neg_().add_(1).unsqueeze(1)
    blend(image, keep, glasses.colour * 0.4)
    image.add_(glare.mul_(inside).mul_(0.12).unsqueeze(1))
    frame = torch.maximum(torch.maximum(step(glasses.rim - lens.abs_(), per_unit), bridge), arm)
    blend(image, frame.neg_().add_(1).unsqueeze(1), glasses.colour)


def draw_occluder(drawing: Portrait) -> None:
    """A flat patch, or a hand: skin-coloured with fingers, reaching in from outside."""
    thing, light = drawing.shot.occluder, drawing.shot.light
    cosine, sine = thing.turn.unbind(1)
    image = drawing.canvas.colour
    size = image.shape[-1]
    across, up = picture_axes(size, image.device)
    dx, dy = across - thing.x, up - thing.y
    x = (cosine * dx + sine * dy).div_(thing.width)
    y = cosine * dy - sine * dx
    hand = thing.hand
    valley = wave((2 * x).add_(0.25)).mul_(0.5).add_(0.5)
    reach = valley.square().mul_(-0.10).sub_(x.square().mul_(0.15)).mul_(hand).add_(thing.height)
    inside = torch.minimum((1 - x.abs_()).mul_(thing.width), torch.minimum(reach.sub_(y), y + (thing.height + hand)))
    shade = (valley.square() * valley).mul_(-0.45 * hand).add_(1).mul_(light.ambient + 0.6 * light.diffuse)
    colour = torch.where(hand.unsqueeze(1) > 0, drawing.person.skin.colour, thing.colour)
    keep = step(inside, 0.5 * size).neg_().add_(1)
    blend(image, keep.unsqueeze(1), shade.unsqueeze(1) * colour)
