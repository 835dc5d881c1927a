"""A person in numbers: everything that stays fixed from one image to the next."""

from dataclasses import dataclass

from torch import Tensor

from personae.data.synthetic.latents import Latents

BLACK, BLOND, BROWN, GRAY, RED = range(5)
BALD, SHORT, MEDIUM, LONG = range(4)
SHAVEN, GOATEE, MOUSTACHE, FULL_BEARD, CHIN_CURTAIN = range(5)
MOLES = 4  # moles that a person may have


@dataclass(frozen=True)
class Head(Latents):
    """Lengths are in half-heights of an average head; temple to chin widen the head at their heights."""

    width: Tensor
    height: Tensor
    depth: Tensor
    temple: Tensor
    cheek: Tensor
    jaw: Tensor
    chin: Tensor
    lean: Tensor
    ear_size: Tensor
    ear_out: Tensor
    cleft: Tensor


@dataclass(frozen=True)
class Eyes(Latents):
    x: Tensor
    y: Tensor
    width: Tensor
    height: Tensor
    tilt: Tensor
    skew: Tensor
    iris_radius: Tensor
    iris: Tensor
    fold: Tensor
    lash: Tensor
    bags: Tensor


@dataclass(frozen=True)
class Brows(Latents):
    y: Tensor
    thickness: Tensor
    arch: Tensor
    tilt: Tensor
    width: Tensor
    shift: Tensor
    ridge: Tensor


@dataclass(frozen=True)
class Nose(Latents):
    y: Tensor
    width: Tensor
    tip: Tensor
    out: Tensor
    bridge_width: Tensor
    bridge_out: Tensor
    skew: Tensor


@dataclass(frozen=True)
class Mouth(Latents):
    y: Tensor
    width: Tensor
    upper: Tensor
    lower: Tensor
    bow: Tensor
    skew: Tensor
    dimple: Tensor
    lipstick: Tensor
    lipstick_colour: Tensor


@dataclass(frozen=True)
class Skin(Latents):
    tone: Tensor
    colour: Tensor
    rosy: Tensor
    freckles: Tensor
    phase: Tensor
    wrinkles: Tensor
    mole_x: Tensor
    mole_y: Tensor
    mole_radius: Tensor


@dataclass(frozen=True)
class Hair(Latents):
    colour: Tensor
    kind: Tensor
    style: Tensor
    line: Tensor
    widow: Tensor
    part: Tensor
    fringe: Tensor
    volume: Tensor
    curl: Tensor
    strands: Tensor


@dataclass(frozen=True)
class Beard(Latents):
    kind: Tensor
    density: Tensor
    stubble: Tensor


@dataclass(frozen=True)
class Glasses(Latents):
    owned: Tensor
    lens_width: Tensor
    lens_height: Tensor
    roundness: Tensor
    rim: Tensor
    colour: Tensor


@dataclass(frozen=True)
class Hat(Latents):
    liking: Tensor
    line: Tensor
    height: Tensor
    brim: Tensor
    colour: Tensor


@dataclass(frozen=True)
class Person(Latents):
    male: Tensor
    age: Tensor
    fat: Tensor
    head: Head
    eyes: Eyes
    brows: Brows
    nose: Nose
    mouth: Mouth
    skin: Skin
    hair: Hair
    beard: Beard
    glasses: Glasses
    hat: Hat
