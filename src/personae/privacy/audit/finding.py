"""What an attack found, with what chance alone would have found."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scipy.special import betaincinv

from personae.errors import DataError
from personae.files import from_json, write_text
from personae.written import register

FILE = "audit.json"  # in the folder of a run
AUC = "AUC"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure of one attack on one stage of a run; or, with a `reason`, why there is none."""

    attack: str
    stage: str
    target: str  # what was attacked: a kind of payload, the model, or an answer
    figure: str  # what is counted
    value: float | None = None
    chance: float | None = None  # what somebody gets who guesses
    low: float | None = None  # the 95% interval of the value
    high: float | None = None
    trials: int = 0
    details: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""  # why it was not measured

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval does not hold what guessing gives. An AUC tells as much below as above."""
        if self.low is None or self.high is None or self.chance is None:
            return False
        return self.low > self.chance or (self.figure == AUC and self.high < self.chance)


@dataclass(frozen=True, kw_only=True)
class Described:
    """An attack in words."""

    name: str
    has: str
    tries: str
    strength: str


def known_attacks() -> tuple[Described, ...]:
    """Those of this package, read from their text: they are algorithms, and take seconds to import."""
    words = ("name", "has", "tries", "strength")
    kinds = register("personae.privacy.audit", "PRIVACY_ATTACKS").own.values()
    return tuple(Described(**{each: kind.words(each) for each in words}) for kind in kinds)


@dataclass(frozen=True)
class Audit:
    """The attacks that were made on a run, and what they found."""

    attacks: tuple[Described, ...]
    findings: tuple[Finding, ...]

    def followed_by(self, later: "Audit") -> "Audit":
        """Both, where an attack on a stage that was made again counts as it was found last."""
        again = {(each.stage, each.attack) for each in later.findings}
        words = {each.name: each for each in (*self.attacks, *later.attacks)}
        kept = tuple(each for each in self.findings if (each.stage, each.attack) not in again)
        return Audit(tuple(words.values()), (*kept, *later.findings))

    def of(self, stages: Iterable[str]) -> tuple[Finding, ...]:
        wanted = set(stages)
        return tuple(each for each in self.findings if each.stage in wanted)


def write_audit(run: Path, audit: Audit) -> Path:
    """Into the folder of the run, where its report, its card and its annex find it."""
    write_text(run / FILE, json.dumps(asdict(audit), indent=1) + "\n")
    return run / FILE


def read_audit(run: Path) -> Audit | None:
    """What was measured of a run; None where nothing was."""
    path = run / FILE
    if not path.is_file():
        return None
    try:
        plain = from_json(path.read_bytes())
        attacks = tuple(Described(**each) for each in plain["attacks"])
        return Audit(attacks, tuple(Finding(**each) for each in plain["findings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}; make it again with personae audit") from error


def share_interval(hits: float, trials: int) -> tuple[float, float]:
    """The 95% interval of a share (Clopper and Pearson): exact, so that a single lucky hit is not beyond chance."""
    low = float(betaincinv(hits, trials - hits + 1, 0.025)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 0.975)) if hits < trials else 1.0
    return low, high
