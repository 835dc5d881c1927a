"""How things are seen: the camera's axes in the head, and ellipsoids met by parallel rays.

Head coordinates: x to the right of the picture, y up, z out of the face; the half-height of a head is about one.
A ray is (u, v) on the picture; along it w runs towards the camera. Seen by parallel rays an ellipsoid is an ellipse,
and the depth, the position and the normal where it is hit are linear in u, v and t, the height of the hit above the
ellipse's plane where the ellipsoid is a unit sphere. So a picture costs a few passes for each ellipsoid, and the
coefficients are worked out once for each image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.synthetic.capture import Pose
from personae.data.synthetic.latents import Latents

WRAP = 0.15  # how far light reaches round the edge of a shadow


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products in a fixed order of summation."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]


@dataclass(frozen=True)
class Axes(Latents):
    """The camera's right, up and towards-the-camera directions in head coordinates, [N, 3] each."""

    right: Tensor
    up: Tensor
    towards: Tensor

    @classmethod
    def of(cls, pose: Pose) -> "Axes":
        """Those of a camera that is held upright: yaw and pitch, without the roll."""
        (yaw_cos, yaw_sin), (pitch_cos, pitch_sin) = pose.yaw.unbind(-1), pose.pitch.unbind(-1)
        return cls(
            right=torch.stack([yaw_cos, yaw_sin * pitch_sin, yaw_sin * pitch_cos], -1),
            up=torch.stack([0 * yaw_cos, pitch_cos, -pitch_sin], -1),
            towards=torch.stack([-yaw_sin, yaw_cos * pitch_sin, yaw_cos * pitch_cos], -1),
        )

    def rolled(self, roll: Tensor) -> "Axes":
        cosine, sine = roll[:, :1], roll[:, 1:]
        return Axes(cosine * self.right - sine * self.up, sine * self.right + cosine * self.up, self.towards)


@dataclass(frozen=True)
class Conics(Latents):
    """Ellipsoids as seen: [N, parts, ...] coefficients.

    `outline` gives the squared distance from the centre, (a u + b v + c)² + (d v + e)², which is one on the edge, and
    `edge` how fast it falls there, in pixels; the others are linear forms in (u, v, 1, t).
    """

    outline: Tensor
    edge: Tensor
    lambert: Tensor
    depth: Tensor
    x: Tensor
    y: Tensor
    z: Tensor

    @classmethod
    def seen(cls, axes: Axes, centres: Tensor, radii: Tensor, light: Tensor, pixel: Tensor) -> "Conics":
        """Project ellipsoids with [N, parts, 3] centres and radii, lit from a direction [N, 3]."""
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
        return cls(
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


def horner(coefficients: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """The value of a polynomial whose coefficients are given with the constant first."""
    *lower, value = coefficients
    value = value * x
    for coefficient in reversed(lower[1:]):
        value = value.add_(coefficient).mul_(x)
    return value.add_(lower[0])
