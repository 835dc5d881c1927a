"""Where the parts of a person are, and where they appear in the image."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from personae.data.synthetic.capture import Shot
from personae.data.synthetic.geometry import Axes, Conics, dot, horner, plane
from personae.data.synthetic.latents import Latents
from personae.data.synthetic.person import Person


class Part(IntEnum):
    """Ellipsoids that a person is made of, apart from the skull."""

    BODY = 0
    BACK_HAIR = 1
    NECK = 2
    LEFT_EAR = 3
    RIGHT_EAR = 4
    BRIDGE = 5
    TIP = 6
    LEFT_WING = 7
    RIGHT_WING = 8
    HAIR = 9
    HAT = 10
    BRIM = 11


class Spot(IntEnum):
    """Places of the head that have a window to draw in; the person's moles follow the last."""

    LEFT_EAR = 0
    RIGHT_EAR = 1
    NOSE = 2
    EYES = 3
    MOUTH = 4
    CHIN = 5
    FIRST_MOLE = 6


@dataclass(frozen=True)
class Anatomy(Latents):
    """A person as seen in an image; `nose_plane`, `glasses_plane` and `middle_plane` are forms as `plane` gives."""

    parts: Conics
    skull: Conics
    profile: Tensor
    spots: Tensor
    scale: Tensor
    origin: Tensor
    light: Tensor
    highlight: Tensor
    nose_shift: Tensor
    nose_plane: Tensor
    glasses_plane: Tensor
    middle_plane: Tensor


def anatomy_of(person: Person, shot: Shot, size: int) -> Anatomy:
    pose, head, nose = shot.pose, person.head, person.nose
    level = Axes.of(pose)
    axes = level.rolled(pose.roll)
    pixel = pose.zoom * (2 / size)
    sun = shot.light.direction
    light = axes.right * sun[:, :1] + axes.up * sun[:, 1:2] + axes.towards * sun[:, 2:]
    halfway = light + axes.towards
    shift = head.lean * nose.y + nose.skew
    surface = head.depth * (1 - (nose.y / head.height) ** 2).sqrt()
    centres, radii = _solids(person, shift, surface)
    skull = torch.stack([head.width, head.height + 0.35 * shot.expression.mouth_open, head.depth], -1).unsqueeze(1)
    profile = _profile(person, shot)
    cosine, sine = pose.roll.unbind(-1)
    origin = torch.stack([pose.dx * cosine - pose.dy * sine, pose.dx * sine + pose.dy * cosine], -1)
    spots = _spots(person, axes, level, profile, pose.roll, shift, surface)
    return Anatomy(
        parts=Conics.seen(axes, centres, radii, light, pixel),
        skull=Conics.seen(level, 0 * skull, skull, light, pixel),
        profile=profile,
        spots=(spots + origin.unsqueeze(1)) / pose.zoom.view(-1, 1, 1),
        scale=pose.zoom,
        origin=origin,
        light=light,
        highlight=halfway / dot(halfway, halfway).sqrt().unsqueeze(-1) / skull[:, 0],
        nose_shift=shift,
        nose_plane=plane(axes, surface + 0.02),
        glasses_plane=plane(axes, head.depth * 0.97 + 0.05),
        middle_plane=plane(axes, 0 * surface),
    )


def _solids(person: Person, nose_shift: Tensor, surface: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and radii [N, parts, 3]; `surface` is the depth of the face at the nose."""
    head, nose, eyes, hair, hat = person.head, person.nose, person.eyes, person.hair, person.hat
    A, B, C = head.width, head.height, head.depth
    shell = A * 1.02 + 0.6 * hair.volume
    ear = (0.05 + 0.07 * head.ear_out, head.ear_size, 0.11)
    wing = (nose.width * 0.55, 0.07, 0.10)
    Place = tuple[Tensor | float, Tensor | float, Tensor | float]
    solids: dict[Part, tuple[Place, Place]] = {
        Part.BODY: ((0, -1.95, -0.25), (1.45, 0.85, 0.6)),
        Part.BACK_HAIR: ((0, -0.42, -0.42), (A * 1.22 + hair.volume, 1.15, 0.5)),
        Part.NECK: ((0, -1.15, -0.22), (A * 0.60 + 0.04 * person.male, 0.75, 0.45)),
        Part.LEFT_EAR: ((-A, eyes.y - 0.12, -0.08), ear),
        Part.RIGHT_EAR: ((A, eyes.y - 0.12, -0.08), ear),
        Part.BRIDGE: (
            (0.5 * nose_shift, 0.5 * (nose.y + eyes.y) + 0.06, surface + nose.bridge_out - 0.03),
            (nose.bridge_width * 1.15, 0.30, 0.12),
        ),
        Part.TIP: ((nose_shift, nose.y + 0.03, surface + nose.out - 0.07), (nose.tip * 0.85, nose.tip * 0.75, 0.13)),
        Part.LEFT_WING: ((nose_shift - nose.width * 0.8, nose.y + 0.005, surface - 0.03), wing),
        Part.RIGHT_WING: ((nose_shift + nose.width * 0.8, nose.y + 0.005, surface - 0.03), wing),
        Part.HAIR: ((0, 0.03, -0.05), (shell, B + hair.volume, C + 0.4 * hair.volume)),
        Part.HAT: ((0, 0.03, -0.03), (shell + 0.04 * A, B + hair.volume + hat.height, C + 0.4 * hair.volume + 0.06)),
        Part.BRIM: ((0, hat.line, 0.35 * C), (A * 1.12, 0.05, C * 1.05)),
    }
    centres = torch.stack([_vectors(A, solids[part][0]) for part in Part], 1)
    return centres, torch.stack([_vectors(A, solids[part][1]) for part in Part], 1)


def _vectors(like: Tensor, place: tuple[Tensor | float, ...]) -> Tensor:
    return torch.stack([torch.zeros_like(like) + coordinate for coordinate in place], -1)


# The head is as much wider than an ellipsoid as the quartic through its values here, and one at the top, says.
PROFILE_HEIGHTS = (0.45, -0.22, -0.62, -0.95, 1.0)


def _profile(person: Person, shot: Shot) -> Tensor:
    head = person.head
    widening = (head.temple, head.cheek + 0.02 * shot.expression.puff, head.jaw, head.chin)
    profile = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for height, amount in zip(PROFILE_HEIGHTS, widening, strict=False):
        profile = profile + amount.unsqueeze(-1) * torch.tensor(_lagrange(height), dtype=torch.float64)
    return profile


def _lagrange(knot: float) -> list[float]:
    """Coefficients, constant first, of the quartic that is one at this height and zero at the others."""
    coefficients = [1.0]
    for other in PROFILE_HEIGHTS:
        if other != knot:
            raised, scaled = [0.0, *coefficients], [*(other * c for c in coefficients), 0.0]
            coefficients = [(up - down) / (knot - other) for up, down in zip(raised, scaled, strict=True)]
    return coefficients


def _spots(
    person: Person, axes: Axes, level: Axes, profile: Tensor, roll: Tensor, nose_shift: Tensor, surface: Tensor
) -> Tensor:
    """(u, v) of the spots and of the moles: [N, spots, 2]."""
    head, eyes, skin = person.head, person.eyes, person.skin
    A = head.width
    places: list[tuple[Tensor | float, ...]] = [
        (-A, eyes.y - 0.12, -0.08),
        (A, eyes.y - 0.12, -0.08),
        (0.8 * nose_shift, 0.5 * (person.nose.y + eyes.y) - 0.04, surface + 0.03),
    ]
    outside = torch.stack([_vectors(A, place) for place in places], 1)
    u, v = (dot(axis.unsqueeze(1), outside) for axis in (axes.right, axes.up))

    heights = _vectors(A, (eyes.y + 0.06, person.mouth.y + 0.08, -0.86))
    y = torch.cat([heights, skin.mole_y], -1)
    x = torch.cat([0 * heights, skin.mole_x], -1) + head.lean.unsqueeze(-1) * y
    width, height, depth = (radius.unsqueeze(-1) for radius in (head.width, head.height, head.depth))
    z = depth * (1 - (x / width) ** 2 - (y / height) ** 2).clamp(min=0.02).sqrt()
    on_face = torch.stack([x, y, z], -1)
    across, up = (dot(axis.unsqueeze(1), on_face) for axis in (level.right, level.up))
    across = across * horner(profile.unsqueeze(-1).unbind(1), y)
    cosine, sine = roll[:, :1], roll[:, 1:]
    u = torch.cat([u, cosine * across - sine * up], -1)
    v = torch.cat([v, sine * across + cosine * up], -1)
    return torch.stack([u, v], -1)
