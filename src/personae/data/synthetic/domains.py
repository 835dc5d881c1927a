"""Ready-made pairs of people and capture conditions, which differ in both."""

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

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (STUDIO, ENTRANCE, WEBCAM)}
DEFAULT = STUDIO.name


def find_domain(domain: str | Domain) -> Domain:
    if isinstance(domain, Domain):
        return domain
    if domain not in DOMAINS:
        raise ConfigError(f"unknown domain {domain!r} of synthetic faces; there are: {', '.join(DOMAINS)}")
    return DOMAINS[domain]
