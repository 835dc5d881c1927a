"""Who is in the picture: distributions of people, and drawing from them."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from personae.data.synthetic.person import (
    MOLES,
    Beard,
    Brows,
    Eyes,
    Glasses,
    Hair,
    Hat,
    Head,
    Mouth,
    Nose,
    Person,
    Skin,
)
from personae.data.synthetic.random import Stream

HAIR_COLOURS = ((0.07, 0.06, 0.06), (0.80, 0.62, 0.32), (0.32, 0.19, 0.11), (0.62, 0.61, 0.60), (0.55, 0.23, 0.09))
LIGHTEST_SKIN, DARKEST_SKIN = (0.93, 0.74, 0.64), (0.34, 0.21, 0.15)


@dataclass(frozen=True)
class People:
    """A distribution of people; the name keeps the people of two distributions apart."""

    name: str
    skin_tone: tuple[float, float] = (0.15, 0.65)  # range on the ramp from light to dark
    hair_odds: tuple[float, float, float, float, float] = (0.24, 0.24, 0.34, 0.08, 0.10)
    shape_shift: float = 0.0  # moves the means of the shape latents
    male_rate: float = 0.5
    glasses_rate: float = 0.35
    beard_rate: float = 0.45  # among men
    # How much people differ in a part of the face, as a multiple of the usual deviation: what tells them apart.
    outline_variety: float = 1.0  # head, jaw, chin, ears
    upper_variety: float = 1.0  # eyes and brows
    lower_variety: float = 1.0  # nose and mouth


def draw_people(identities: Tensor, seed: int, people: People) -> Person:
    """The people with these numbers; each is a function of the seed, the people's name and the number alone."""
    draw = Stream(seed, "person", people.name, identities)
    shift = people.shape_shift
    male = draw.chance(people.male_rate).double()
    gender = male - 0.5
    age, fat = draw.uniform(), draw.normal()
    outline, upper, lower = (
        partial(_varied, draw, variety)
        for variety in (people.outline_variety, people.upper_variety, people.lower_variety)
    )
    head = Head(
        width=outline(0.735 + 0.03 * shift, 0.035) + 0.025 * fat,
        height=outline(1.0 - 0.03 * shift, 0.035),
        depth=outline(0.84, 0.05),
        temple=outline(0.0, 0.04),
        cheek=outline(0.01 + 0.04 * shift, 0.045) + 0.035 * fat,
        jaw=outline(-0.04 + 0.10 * gender, 0.06) + 0.04 * fat,
        chin=outline(-0.08 + 0.12 * gender - 0.05 * shift, 0.09),
        lean=outline(0.0, 0.025),
        ear_size=outline(0.20, 0.028),
        ear_out=draw.uniform(0.2, 1.0),
        cleft=draw.sometimes(0.25, 0.3, 1.0),
    )
    eyes = Eyes(
        x=upper(0.305 + 0.02 * shift, 0.024),
        y=upper(0.0, 0.032),
        width=upper(0.152, 0.014),
        height=upper(0.070 - 0.014 * shift - 0.008 * gender, 0.010),
        tilt=upper(0.03 + 0.10 * shift - 0.03 * gender, 0.085),
        skew=upper(0.0, 0.014),
        iris_radius=upper(0.062, 0.006),
        iris=torch.stack([draw.uniform(0.08, 0.45), draw.uniform(0.12, 0.50), draw.uniform(0.05, 0.65)], -1)
        * (1 - 0.65 * min(abs(shift), 1.0)),
        fold=draw.uniform(0.3, 1.0),
        lash=draw.uniform(0.3, 0.8) - 0.5 * gender,
        bags=(draw.normal(-0.3, 0.5) + age).clamp(0.0, 1.0),
    )
    brows = Brows(
        y=upper(0.150 - 0.03 * gender, 0.024),
        thickness=upper(0.034 + 0.018 * gender, 0.011).clamp(0.012, 0.08),
        arch=upper(0.045 - 0.025 * gender, 0.025),
        tilt=upper(0.0, 0.12),
        width=upper(0.185, 0.018),
        shift=upper(0.01, 0.018),
        ridge=upper(0.3 + 0.5 * gender, 0.3),
    )
    nose = Nose(
        y=lower(-0.37 + 0.02 * shift, 0.035),
        width=lower(0.112 + 0.018 * gender + 0.022 * shift, 0.018),
        tip=lower(0.125, 0.02),
        out=lower(0.11 - 0.03 * shift + 0.02 * gender, 0.03),
        bridge_width=lower(0.062 + 0.008 * shift, 0.012),
        bridge_out=lower(0.02 - 0.03 * shift, 0.025),
        skew=lower(0.0, 0.018),
    )
    mouth = Mouth(
        y=lower(-0.585, 0.028),
        width=lower(0.235 + 0.015 * gender, 0.027),
        upper=lower(0.040 - 0.010 * gender + 0.008 * shift, 0.010).clamp(min=0.012),
        lower=lower(0.055 - 0.012 * gender + 0.010 * shift, 0.012).clamp(min=0.018),
        bow=draw.uniform(),
        skew=lower(0.0, 0.05),
        dimple=draw.sometimes(0.3, 0.4, 1.0),
        lipstick=draw.chance(0.55 * (1 - male)),
        lipstick_colour=torch.stack([draw.uniform(0.5, 0.8), draw.uniform(0.05, 0.2), draw.uniform(0.1, 0.3)], -1),
    )
    tone, hue = draw.uniform(*people.skin_tone), draw.normal(0.0, 0.025)
    light, dark = tone.new_tensor(LIGHTEST_SKIN), tone.new_tensor(DARKEST_SKIN)
    skin = Skin(
        tone=tone,
        colour=light + tone.unsqueeze(-1) * (dark - light) + torch.stack([hue, 0 * hue, -hue], -1),
        rosy=draw.sometimes(0.2, 0.5, 1.0),
        freckles=draw.sometimes(0.2, 0.4, 1.0),
        phase=draw.uniform(),
        wrinkles=(age - 0.45).clamp(min=0.0) * draw.uniform(0.7, 1.7),
        mole_x=torch.stack([draw.uniform(-0.55, 0.55) for _ in range(MOLES)], -1),
        mole_y=torch.stack([draw.uniform(-0.85, 0.45) for _ in range(MOLES)], -1),
        mole_radius=torch.stack([draw.sometimes(0.4, 0.012, 0.027) for _ in range(MOLES)], -1),
    )
    return Person(
        male=male,
        age=age,
        fat=fat,
        head=head,
        eyes=eyes,
        brows=brows,
        nose=nose,
        mouth=mouth,
        skin=skin,
        hair=_draw_hair(draw, people, male, age),
        beard=_draw_beard(draw, people, male),
        glasses=_draw_glasses(draw, people),
        hat=Hat(
            liking=draw.uniform(0.0, 2.0),
            line=draw.uniform(0.30, 0.50),
            height=draw.uniform(0.10, 0.30),
            brim=draw.chance(0.5),
            colour=draw.colour(0.05, 0.9),
        ),
    )


def _varied(draw: Stream, variety: float, mean: float | Tensor, spread: float) -> Tensor:
    return draw.normal(mean, variety * spread)


def _draw_hair(draw: Stream, people: People, male: Tensor, age: Tensor) -> Hair:
    graying = (age - 0.55).clamp(min=0.0) * 9.6
    black, blond, brown, gray, red = people.hair_odds
    kind = draw.choice([black, blond, brown, gray * graying + 0.01, red])
    shade = draw.uniform(0.75, 1.25).unsqueeze(-1)
    return Hair(
        colour=(shade.new_tensor(HAIR_COLOURS)[kind] * shade + 0.03 * draw.colour(-1.0, 1.0)).clamp(0.02, 0.95),
        kind=kind,
        style=draw.choice([0.25 * male * age, 0.15 + 0.6 * male, 0.25, 0.75 - 0.68 * male]),
        line=draw.normal(0.52, 0.07) + 0.12 * male * age,
        widow=draw.normal(0.0, 0.5),
        part=draw.normal(0.0, 0.14),
        fringe=draw.sometimes(0.25, 0.1, 0.28) * (1 - 0.6 * male),
        volume=draw.uniform(0.04, 0.17),
        curl=draw.uniform(),
        strands=draw.uniform(2.0, 6.5),
    )


def _draw_beard(draw: Stream, people: People, male: Tensor) -> Beard:
    rate = people.beard_rate
    kind = draw.choice([1 - rate, 0.25 * rate, 0.28 * rate, 0.35 * rate, 0.12 * rate])
    return Beard(
        kind=kind * male.long(),
        density=draw.uniform(0.6, 0.95),
        stubble=male * draw.uniform(0.0, 0.35),
    )


def _draw_glasses(draw: Stream, people: People) -> Glasses:
    return Glasses(
        owned=draw.chance(people.glasses_rate),
        lens_width=draw.uniform(0.16, 0.21),
        lens_height=draw.uniform(0.11, 0.17),
        roundness=draw.uniform(0.3, 1.0),
        rim=draw.uniform(0.012, 0.03),
        colour=draw.colour(0.0, 0.5) * draw.uniform(0.1, 1.0).unsqueeze(-1),
    )
