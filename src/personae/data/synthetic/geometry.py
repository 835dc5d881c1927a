"""Where things are: the camera's axes in the head, and ellipsoids seen by parallel rays.

Head coordinates: x to the right of the picture, y up, z out of the face; the half-height of a head is about one.
A ray is (u, v) on the picture; along it w runs towards the camera. Seen by parallel rays an ellipsoid is an ellipse,
and the depth, the position and the normal where it is hit are linear in u, v and t, the height of the hit above the
ellipse's plane where the ellipsoid is a unit sphere. So a picture costs a few passes for each ellipsoid, and the
coefficients are worked out once for each image.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from personae.data.synthetic.capture import Pose, Shot
from personae.data.synthetic.latents import Latents
from personae.data.synthetic.people import Person

WRAP = 0.15  # how far light reaches round the edge of a shadow


class Part(IntEnum):
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


@dataclass(frozen=True)
class Axes(Latents):
    """The camera's right, up and towards-the-camera directions in head coordinates."""

    right: Tensor
    up: Tensor
    towards: Tensor


@dataclass(frozen=True)
class Conics(Latents):
    """Ellipsoids as seen: [N, parts, ...] coefficients.

    `outline` gives the squared distance from the centre, (a u + b v + c)² + (d v + e)², which is one on the edge;
    the others are linear forms in (u, v, 1, t).
    """

    outline: Tensor
    edge: Tensor
    lambert: Tensor
    depth: Tensor
    x: Tensor
    y: Tensor
    z: Tensor


@dataclass(frozen=True)
class Geometry(Latents):
    parts: Conics
    skull: Conics
    profile: Tensor
    scale: Tensor
    origin: Tensor
    light: Tensor
    highlight: Tensor
    face_plane: Tensor
    glasses_plane: Tensor
    flat: Tensor
    nose_shift: Tensor


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products in a fixed order of summation."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]


def axes_of(pose: Pose, rolled: bool) -> Axes:
    (yaw_cos, yaw_sin), (pitch_cos, pitch_sin) = pose.yaw.unbind(-1), pose.pitch.unbind(-1)
    right = torch.stack([yaw_cos, yaw_sin * pitch_sin, yaw_sin * pitch_cos], -1)
    up = torch.stack([0 * yaw_cos, pitch_cos, -pitch_sin], -1)
    towards = torch.stack([-yaw_sin, yaw_cos * pitch_sin, yaw_cos * pitch_cos], -1)
    if not rolled:
        return Axes(right, up, towards)
    cosine, sine = pose.roll[:, :1], pose.roll[:, 1:]
    return Axes(cosine * right - sine * up, sine * right + cosine * up, towards)


def conics(axes: Axes, centres: Tensor, radii: Tensor, light: Tensor, pixel: Tensor) -> Conics:
    """Project the ellipsoids with these [N, parts, 3] centres and radii."""
    right, up, towards = (axis.unsqueeze(1) for axis in (axes.right, axes.up, axes.towards))
    along = towards / radii
    length = dot(along, along)
    across_u, across_v = right / radii, up / radii
    slope_u, slope_v = dot(along, across_u) / length, dot(along, across_v) / length
    across_u = across_u - slope_u.unsqueeze(-1) * along
    across_v = across_v - slope_v.unsqueeze(-1) * along
    height = along / length.sqrt().unsqueeze(-1)

    a = dot(across_u, across_u).sqrt()
    b = dot(across_u, across_v) / a
    d = (dot(across_v, across_v) - b * b).clamp(min=1e-9).sqrt()
    centre_u, centre_v = dot(right, centres), dot(up, centres)

    def form(per_u: Tensor, per_v: Tensor, per_t: Tensor, at_centre: Tensor | float) -> Tensor:
        return torch.stack([per_u, per_v, at_centre - per_u * centre_u - per_v * centre_v, per_t], -1)

    def coordinate(axis: int) -> Tensor:
        per_u, per_v, per_t = (radii[..., axis] * vector[..., axis] for vector in (across_u, across_v, height))
        return form(per_u, per_v, per_t, centres[..., axis])

    sun = light.unsqueeze(1) / (1 + WRAP)
    return Conics(
        outline=torch.stack([a, b, -a * centre_u - b * centre_v, d, -d * centre_v], -1),
        edge=0.5 / ((a * d).sqrt() * pixel.unsqueeze(-1)),
        lambert=form(dot(sun, across_u), dot(sun, across_v), dot(sun, height), WRAP / (1 + WRAP)),
        depth=form(-slope_u, -slope_v, 1 / length.sqrt(), dot(towards, centres)),
        x=coordinate(0),
        y=coordinate(1),
        z=coordinate(2),
    )


def plane(axes: Axes, z: Tensor) -> Tensor:
    """Linear forms in (u, v, 1) of x and y where the rays cross the plane at this z: [N, 2, 3]."""
    forms = []
    for axis in (0, 1):
        lean = axes.towards[:, axis] / axes.towards[:, 2]
        per_u, per_v = (way[:, axis] - way[:, 2] * lean for way in (axes.right, axes.up))
        forms.append(torch.stack([per_u, per_v, z * lean], -1))
    return torch.stack(forms, 1)


# The width profile is the quartic through one at the crown and the person's values at these heights.
PROFILE_HEIGHTS = (0.45, -0.22, -0.62, -0.95, 1.0)


def _profile_basis(knot: float) -> list[float]:
    """Coefficients, constant first, of the quartic that is one at this height and zero at the others."""
    coefficients = [1.0]
    for other in PROFILE_HEIGHTS:
        if other != knot:
            shifted, scaled = [0.0, *coefficients], [*(other * c for c in coefficients), 0.0]
            coefficients = [(up - down) / (knot - other) for up, down in zip(shifted, scaled, strict=True)]
    return coefficients


def _profile(person: Person, shot: Shot) -> Tensor:
    head = person.head
    widening = (head.temple, head.cheek + 0.02 * shot.expression.puff, head.jaw, head.chin)
    profile = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for knot, amount in zip(PROFILE_HEIGHTS, widening, strict=False):
        profile = profile + amount.unsqueeze(-1) * torch.tensor(_profile_basis(knot), dtype=torch.float64)
    return profile


def geometry_of(person: Person, shot: Shot, size: int) -> Geometry:
    pose, head, nose, eyes, hair, hat = shot.pose, person.head, person.nose, person.eyes, person.hair, person.hat
    axes, level = axes_of(pose, rolled=True), axes_of(pose, rolled=False)
    pixel = pose.zoom * (2 / size)
    sun = shot.light.direction
    light = axes.right * sun[:, :1] + axes.up * sun[:, 1:2] + axes.towards * sun[:, 2:]
    halfway = light + axes.towards
    A, B, C = head.width, head.height, head.depth
    none = 0 * A

    surface = C * (1 - (nose.y / B) ** 2).sqrt()
    shift = head.lean * nose.y + nose.skew
    shell = A * 1.02 + 0.6 * hair.volume
    ear = (0.05 + 0.07 * head.ear_out, head.ear_size, none + 0.11)
    wing = (nose.width * 0.55, none + 0.07, none + 0.10)
    solids = {
        Part.BODY: ((none, none - 1.95, none - 0.25), (none + 1.45, none + 0.85, none + 0.6)),
        Part.BACK_HAIR: ((none, none - 0.42, none - 0.42), (A * 1.22 + hair.volume, none + 1.15, none + 0.5)),
        Part.NECK: ((none, none - 1.15, none - 0.22), (A * 0.60 + 0.04 * person.male, none + 0.75, none + 0.45)),
        Part.LEFT_EAR: ((-A, eyes.y - 0.12, none - 0.08), ear),
        Part.RIGHT_EAR: ((A, eyes.y - 0.12, none - 0.08), ear),
        Part.BRIDGE: (
            (0.5 * shift, 0.5 * (nose.y + eyes.y) + 0.06, surface + nose.bridge_out - 0.03),
            (nose.bridge_width * 1.15, none + 0.30, none + 0.12),
        ),
        Part.TIP: (
            (shift, nose.y + 0.03, surface + nose.out - 0.07),
            (nose.tip * 0.85, nose.tip * 0.75, none + 0.13),
        ),
        Part.LEFT_WING: ((shift - nose.width * 0.8, nose.y + 0.005, surface - 0.03), wing),
        Part.RIGHT_WING: ((shift + nose.width * 0.8, nose.y + 0.005, surface - 0.03), wing),
        Part.HAIR: ((none, none + 0.03, none - 0.05), (shell, B + hair.volume, C + 0.4 * hair.volume)),
        Part.HAT: (
            (none, none + 0.03, none - 0.03),
            (shell + 0.04 * A, B + hair.volume + hat.height, C + 0.4 * hair.volume + 0.06),
        ),
        Part.BRIM: ((none, hat.line, 0.35 * C), (A * 1.12, none + 0.05, C * 1.05)),
    }
    centres, radii = (torch.stack([torch.stack(solids[part][which], -1) for part in Part], 1) for which in (0, 1))
    skull = torch.stack([A, B + 0.35 * shot.expression.mouth_open, C], -1).unsqueeze(1)
    cosine, sine = pose.roll.unbind(-1)
    return Geometry(
        parts=conics(axes, centres, radii, light, pixel),
        skull=conics(level, 0 * skull, skull, light, pixel),
        profile=_profile(person, shot),
        scale=pose.zoom,
        origin=torch.stack([pose.dx * cosine - pose.dy * sine, pose.dx * sine + pose.dy * cosine], -1),
        light=light,
        highlight=halfway / dot(halfway, halfway).sqrt().unsqueeze(-1) / skull[:, 0],
        face_plane=plane(axes, surface + 0.02),
        glasses_plane=plane(axes, C * 0.97 + 0.05),
        flat=plane(axes, none),
        nose_shift=shift,
    )
