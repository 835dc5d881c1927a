"""What the runs say about the claims."""

import math
import statistics
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from personae.reproduce.claims import Claim, Comparison, Gate
from personae.reproduce.quantities import Outcomes, Quantity
from personae.reproduce.statistics import LEVEL, Test, Verdict, together


@dataclass(frozen=True)
class Measured:
    """A quantity, one value a seed; not a number where its run diverged."""

    quantity: Quantity
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def text(self) -> str:
        """Mean and, of more than one seed, the standard deviation."""
        if not math.isfinite(self.mean):
            return "–"
        return spread(self.values)


@dataclass(frozen=True)
class Part:
    """One comparison of a claim, tested; with half of the difference that the paper reports, if it reports any."""

    comparison: Comparison
    test: Test
    half_of_paper: float | None = None

    @property
    def verdict(self) -> Verdict:
        """What is too small to be told from nothing is decided where it is less than half of what the paper reports."""
        found = self.comparison.verdict(self.test)
        if found is Verdict.NOISE and self.half_of_paper is not None:
            return Verdict.FAILS if self.test.below(self.half_of_paper) < LEVEL else found
        return found

    @property
    def p(self) -> float | None:
        known = self.verdict is not Verdict.MISSING and len(self.test.values) > 1
        return self.comparison.p(self.test) if known else None


@dataclass(frozen=True)
class Situation:
    """A gate, with its figures: one value a seed of each quantity, and of the number that its condition is about."""

    gate: Gate
    measured: tuple[Measured, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def passed(self) -> bool | None:
        """None where a run that it needs diverged."""
        return self.gate.condition.met(self.mean) if math.isfinite(self.mean) else None

    @property
    def text(self) -> str:
        return "; ".join(f"{item.quantity.label} {item.text}" for item in self.measured if item.quantity.variants)


@dataclass(frozen=True)
class Finding:
    """A claim with everything that was measured for it."""

    claim: Claim
    measured: tuple[Measured, ...]
    parts: tuple[Part, ...]
    situations: tuple[Situation, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Of its comparisons, where the situation is there that it speaks of."""
        passed = [situation.passed for situation in self.situations]
        if False in passed:
            return Verdict.UNREACHED
        if None in passed:
            return Verdict.MISSING
        return together([part.verdict for part in self.parts])

    def plain(self) -> dict[str, Any]:
        """Ready for JSON; what is not a number is null there."""
        return {
            "id": self.claim.id,
            "claim": self.claim.sentence,
            "paper": self.claim.paper,
            "verdict": str(self.verdict),
            "gates": [
                {
                    "situation": situation.gate.situation,
                    "condition": situation.gate.condition.text,
                    "figures": _figures(situation.measured),
                    "differences": [_number(value) for value in situation.values],
                    "mean": _number(situation.mean),
                    "passed": situation.passed,
                }
                for situation in self.situations
            ],
            "figures": _figures(self.measured),
            "comparisons": [
                {
                    "claims": part.comparison.text,
                    "differences": [_number(value) for value in part.test.values],
                    "mean": _number(part.test.mean),
                    "deviation": _number(part.test.deviation),
                    "interval": part.test.interval,
                    "half_of_paper": _number(part.half_of_paper),
                    "p": part.p,
                    "verdict": str(part.verdict),
                }
                for part in self.parts
            ],
        }


Known = MutableMapping[tuple[int, str], float]  # figures computed from models, by seed and label


def find(claim: Claim, outcomes: Mapping[int, Outcomes], known: Known | None = None) -> Finding:
    """Measure a claim's quantities in the outcomes of each seed, and test what it says of them.

    What needs models is taken from `known` if it is there, and added to it if not.
    """
    known = {} if known is None else known
    wanted = {quantity.label: quantity for quantity in (*claim.quantities, *claim.gauges)}
    measured = {
        label: Measured(quantity, tuple(_read(quantity, seed, of_seed, known) for seed, of_seed in outcomes.items()))
        for label, quantity in wanted.items()
    }

    def figures(quantities: Sequence[Quantity]) -> tuple[Measured, ...]:
        return tuple(measured[quantity.label] for quantity in quantities)

    def contrasts(comparison: Comparison) -> tuple[float, ...]:
        by_seed = zip(*(item.values for item in figures(comparison.quantities)), strict=True)
        return tuple(comparison.contrast(each) if all(map(math.isfinite, each)) else math.nan for each in by_seed)

    def part(comparison: Comparison) -> Part:
        means = [item.mean for item in figures(comparison.quantities)]
        half = comparison.half_of_paper(means) if all(map(math.isfinite, means)) else None
        return Part(comparison, Test(contrasts(comparison)), half)

    return Finding(
        claim,
        figures(claim.quantities),
        tuple(part(comparison) for comparison in claim.parts),
        tuple(Situation(gate, figures(gate.condition.quantities), contrasts(gate.condition)) for gate in claim.gates),
    )


def spread(values: tuple[float, ...]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _read(quantity: Quantity, seed: int, outcomes: Outcomes, known: Known) -> float:
    """Its value, that of a run which diverged and has no outcome, or not a number, also where no models are left."""
    if not all(variant in outcomes for variant in quantity.variants):
        return math.nan if quantity.diverged is None else quantity.diverged
    if not quantity.needs_models:
        return quantity.read(outcomes)
    place = seed, quantity.label
    if place not in known:
        if not all(outcomes[variant].has_models for variant in quantity.variants):
            return math.nan
        known[place] = quantity.read(outcomes)
    return known[place]


def _figures(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    return [
        {
            "label": item.quantity.label,
            "variants": item.quantity.variants,
            "unit": item.quantity.unit,
            "values": [_number(value) for value in item.values],
        }
        for item in measured
    ]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
