"""How the picture is taken: everything that changes from one image of a person to the next."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.synthetic.latents import Latents
from personae.data.synthetic.random import Stream, rotation

HALF_DEGREE = 0.008726646259971648  # in radians; angles are drawn as tangents of their halves

CROP_SPREAD = 0.06


@dataclass(frozen=True)
class Capture:
    """A distribution of capture conditions; angles are in degrees, the name keeps two distributions apart."""

    name: str
    yaw: float = 20.0
    pitch: float = 10.0
    camera_above: float = 0.0  # mean pitch
    roll: float = 7.0
    jitter: float = 0.06
    crop: float = 1.12  # mean half-width of the image, in half-heights of a head
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)  # mean colour of the light
    light_side: float = 40.0  # spread of the light's azimuth
    ambient: tuple[float, float] = (0.35, 0.65)
    contrast: tuple[float, float] = (0.8, 1.15)
    noise: tuple[float, float] = (0.0, 0.035)
    blur: tuple[float, float] = (0.0, 0.012)  # standard deviation, in image widths
    gray_rate: float = 0.12
    glasses_rate: float = 0.8  # among images of people who own some
    sunglasses_rate: float = 0.15  # among images with glasses
    hat_rate: float = 0.10
    occlusion_rate: float = 0.10

    @property
    def closest(self) -> float:
        """The least half-width of an image that can be drawn: normal numbers stay within three deviations."""
        return self.crop - 3 * CROP_SPREAD


@dataclass(frozen=True)
class Pose(Latents):
    """Cosine and sine of each angle, the half-width of the image and the shift of the head in it."""

    yaw: Tensor
    pitch: Tensor
    roll: Tensor
    zoom: Tensor
    dx: Tensor
    dy: Tensor


@dataclass(frozen=True)
class Expression(Latents):
    smile: Tensor
    mouth_open: Tensor
    eye_open: Tensor
    brow_raise: Tensor
    frown: Tensor
    gaze_x: Tensor
    gaze_y: Tensor
    puff: Tensor


@dataclass(frozen=True)
class Light(Latents):
    direction: Tensor
    colour: Tensor
    ambient: Tensor
    diffuse: Tensor
    gloss: Tensor


@dataclass(frozen=True)
class Backdrop(Latents):
    cloth: Tensor
    first: Tensor
    second: Tensor
    along: Tensor
    across: Tensor
    frequency: Tensor
    amplitude: Tensor
    phase: Tensor


@dataclass(frozen=True)
class Occluder(Latents):
    shown: Tensor
    hand: Tensor
    x: Tensor
    y: Tensor
    width: Tensor
    height: Tensor
    turn: Tensor
    colour: Tensor


@dataclass(frozen=True)
class Film(Latents):
    blur: Tensor
    noise: Tensor
    noise_offset: Tensor
    contrast: Tensor
    curve: Tensor
    brightness: Tensor
    gray: Tensor


@dataclass(frozen=True)
class Shot(Latents):
    """`glasses` and `hat` are uniform numbers: whether one is worn depends on the person, see `Capture`."""

    pose: Pose
    expression: Expression
    light: Light
    backdrop: Backdrop
    occluder: Occluder
    film: Film
    glasses: Tensor
    lens_tint: Tensor
    hat: Tensor


def draw_shots(identities: Tensor, images: Tensor, seed: int, capture: Capture) -> Shot:
    """The conditions of these images, functions of the seed, the capture's name, the person and the image number."""
    draw = Stream(seed, "shot", capture.name, identities, images)
    return Shot(
        pose=_draw_pose(draw, capture),
        expression=Expression(
            smile=draw.normal(0.15, 0.7).clamp(-0.5, 1.3),
            mouth_open=draw.sometimes(0.4, 0.0, 0.085),
            eye_open=torch.where(draw.chance(0.08), 0.08, draw.uniform(0.6, 1.15)),
            brow_raise=draw.normal(0.0, 0.022),
            frown=draw.normal(0.0, 0.06),
            gaze_x=draw.normal(0.0, 0.025),
            gaze_y=draw.normal(0.0, 0.012),
            puff=draw.normal(0.0, 0.25),
        ),
        light=_draw_light(draw, capture),
        backdrop=Backdrop(
            cloth=draw.colour(0.05, 0.9),
            first=_wall(draw),
            second=_wall(draw),
            along=torch.stack(draw.direction(), -1),
            across=torch.stack(draw.direction(), -1),
            frequency=draw.uniform(0.16, 1.4),
            amplitude=draw.uniform(0.0, 0.25),
            phase=draw.uniform(),
        ),
        occluder=_draw_occluder(draw, capture),
        film=Film(
            blur=draw.uniform(*capture.blur),
            noise=draw.uniform(*capture.noise),
            noise_offset=(draw.bits() >> 20) & 0xFFFF,
            contrast=draw.uniform(*capture.contrast),
            curve=_ratio(draw.normal(0.0, 0.15)),
            brightness=draw.normal(0.0, 0.06),
            gray=draw.chance(capture.gray_rate),
        ),
        glasses=draw.uniform(),
        lens_tint=draw.uniform(0.0, 0.25) + 0.55 * draw.chance(capture.sunglasses_rate).double(),
        hat=draw.uniform(),
    )


def _draw_pose(draw: Stream, capture: Capture) -> Pose:
    yaw = rotation(draw.normal(0.0, capture.yaw * HALF_DEGREE))
    pitch = rotation(draw.normal(capture.camera_above * HALF_DEGREE, capture.pitch * HALF_DEGREE))
    roll = rotation(draw.normal(0.0, capture.roll * HALF_DEGREE))
    return Pose(
        yaw=torch.stack(yaw, -1),
        pitch=torch.stack(pitch, -1),
        roll=torch.stack(roll, -1),
        zoom=draw.normal(capture.crop, CROP_SPREAD),
        # a face detector centres the face, not the head
        dx=draw.normal(0.0, capture.jitter) - 0.4 * yaw[1],
        dy=draw.normal(-0.02, capture.jitter) + 0.4 * pitch[1],
    )


def _draw_light(draw: Stream, capture: Capture) -> Light:
    azimuth = rotation(draw.normal(0.0, capture.light_side * HALF_DEGREE))
    elevation = rotation(draw.normal(26 * HALF_DEGREE, 20 * HALF_DEGREE))
    warmth, green = draw.normal(0.0, 0.09), draw.normal(0.0, 0.02)
    return Light(
        direction=torch.stack([azimuth[1] * elevation[0], elevation[1], azimuth[0] * elevation[0]], -1),
        colour=torch.stack([1 + warmth, 1 + green, 1 - warmth], -1) * warmth.new_tensor(capture.tint),
        ambient=draw.uniform(*capture.ambient),
        diffuse=draw.uniform(0.55, 1.1),
        gloss=draw.uniform(0.0, 0.35),
    )


def _draw_occluder(draw: Stream, capture: Capture) -> Occluder:
    cosine, sine = draw.direction()
    reach = draw.uniform(0.55, 1.0)
    return Occluder(
        shown=draw.chance(capture.occlusion_rate),
        hand=draw.chance(0.5),
        x=sine * reach,
        y=cosine * reach,
        width=draw.uniform(0.22, 0.42),
        height=draw.uniform(0.25, 0.55),
        turn=torch.stack(rotation(draw.uniform(-1.0, 1.0)), -1),
        colour=draw.colour(0.05, 0.95),
    )


def _wall(draw: Stream) -> Tensor:
    return 0.55 * draw.colour(0.02, 0.98) + 0.45 * draw.uniform(0.02, 0.98).unsqueeze(-1)


def _ratio(deviation: Tensor) -> Tensor:
    """Positive, and as often above one as below: what the exponential does, in correctly rounded operations alone."""
    return (1 + deviation) / (1 - deviation)
