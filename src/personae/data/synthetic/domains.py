"""Ready-made people and capture conditions: pairs that differ in both, and any people before any camera."""

from dataclasses import dataclass

from personae.data.synthetic.capture import Capture
from personae.data.synthetic.people import People
from personae.errors import ConfigError


@dataclass(frozen=True)
class Domain:
    """Some people before some camera; any people may be combined with any capture."""

    name: str
    people: People
    capture: Capture


STUDIO = Domain("studio", People("valley"), Capture("studio"))

ENTRANCE = Domain(
    "entrance",
    People(
        "coast",
        skin_tone=(0.3, 0.95),
        hair_odds=(0.50, 0.06, 0.26, 0.10, 0.08),
        shape_shift=1.2,
        male_rate=0.6,
    ),
    Capture(
        "entrance",
        yaw=16.0,
        pitch=8.0,
        camera_above=15.0,
        crop=0.96,
        tint=(1.12, 1.0, 0.74),
        light_side=57.0,
        ambient=(0.30, 0.50),
        contrast=(0.55, 0.85),
        noise=(0.015, 0.05),
        blur=(0.003, 0.010),
        hat_rate=0.06,
        occlusion_rate=0.08,
    ),
)

WEBCAM = Domain(
    "webcam",
    People(
        "hills",
        skin_tone=(0.0, 0.45),
        hair_odds=(0.16, 0.36, 0.26, 0.08, 0.14),
        shape_shift=-0.8,
        male_rate=0.45,
        glasses_rate=0.5,
        beard_rate=0.6,
    ),
    Capture(
        "webcam",
        yaw=14.0,
        pitch=8.0,
        camera_above=-14.0,
        crop=1.24,
        tint=(0.84, 0.98, 1.20),
        light_side=30.0,
        ambient=(0.25, 0.55),
        contrast=(0.7, 1.2),
        noise=(0.01, 0.06),
        blur=(0.004, 0.014),
        gray_rate=0.0,
        hat_rate=0.03,
        occlusion_rate=0.18,
    ),
)

# Other people, not only people who look otherwise: dark hair and skin in a narrow range say little here, outlines are
# much alike, and noses and mouths tell people apart.
ISLANDS = People(
    "islands",
    skin_tone=(0.85, 0.97),
    hair_odds=(1.0, 0.0, 0.0, 0.0, 0.0),
    shape_shift=1.2,
    outline_variety=0.7,
    lower_variety=1.4,
)

# A passport counter: people look into the camera.
COUNTER = Capture(
    "counter",
    yaw=7.0,
    pitch=4.0,
    roll=3.0,
    jitter=0.03,
    light_side=20.0,
    ambient=(0.5, 0.7),
    contrast=(0.9, 1.1),
    noise=(0.0, 0.015),
    blur=(0.0, 0.005),
    gray_rate=0.0,
    sunglasses_rate=0.0,
    hat_rate=0.0,
    occlusion_rate=0.0,
)

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (STUDIO, ENTRANCE, WEBCAM)}
DEFAULT = STUDIO.name
PEOPLE: dict[str, People] = {each.name: each for each in (*(domain.people for domain in DOMAINS.values()), ISLANDS)}
CAPTURES: dict[str, Capture] = {each.name: each for each in (*(domain.capture for domain in DOMAINS.values()), COUNTER)}


def pair_name(people: str, capture: str) -> str:
    """What the domain of these people before this camera is called."""
    return f"{people}-{capture}"


def find_domain(domain: str | Domain) -> Domain:
    """A domain by its name: a ready-made one, or `islands-studio` for any people before any camera."""
    if isinstance(domain, Domain):
        return domain
    if domain in DOMAINS:
        return DOMAINS[domain]
    people, _, capture = domain.partition("-")
    if people in PEOPLE and capture in CAPTURES:
        return Domain(domain, PEOPLE[people], CAPTURES[capture])
    raise ConfigError(
        f"unknown domain {domain!r} of synthetic faces; there are: {', '.join(DOMAINS)}, and any PEOPLE-CAPTURE of "
        f"{', '.join(PEOPLE)} and {', '.join(CAPTURES)}"
    )
