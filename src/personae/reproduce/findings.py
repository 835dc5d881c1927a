"""What the runs say about the claims."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from personae.reproduce.claims import Claim, Comparison
from personae.reproduce.quantities import Outcomes, Quantity
from personae.reproduce.statistics import Test, Verdict, together


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
    """One comparison of a claim, tested."""

    comparison: Comparison
    test: Test

    @property
    def verdict(self) -> Verdict:
        return self.comparison.verdict(self.test)

    @property
    def p(self) -> float | None:
        known = self.verdict is not Verdict.MISSING and len(self.test.values) > 1
        return self.comparison.p(self.test) if known else None


@dataclass(frozen=True)
class Finding:
    """A claim with everything that was measured for it."""

    claim: Claim
    measured: tuple[Measured, ...]
    parts: tuple[Part, ...]

    @property
    def verdict(self) -> Verdict:
        return together([part.verdict for part in self.parts])

    def plain(self) -> dict[str, Any]:
        """Ready for JSON; what is not a number is null there."""
        return {
            "id": self.claim.id,
            "claim": self.claim.sentence,
            "paper": self.claim.paper,
            "verdict": str(self.verdict),
            "figures": [
                {
                    "label": item.quantity.label,
                    "variants": item.quantity.variants,
                    "unit": item.quantity.unit,
                    "values": [_number(value) for value in item.values],
                }
                for item in self.measured
            ],
            "comparisons": [
                {
                    "claims": part.comparison.text,
                    "differences": [_number(value) for value in part.test.values],
                    "mean": _number(part.test.mean),
                    "deviation": _number(part.test.deviation),
                    "interval": part.test.interval,
                    "p": part.p,
                    "verdict": str(part.verdict),
                }
                for part in self.parts
            ],
        }


def find(claim: Claim, outcomes: Mapping[int, Outcomes]) -> Finding:
    """Measure a claim's quantities in the outcomes of each seed, and test what it says of them."""
    values = {
        quantity.label: tuple(_read(quantity, of_seed) for of_seed in outcomes.values())
        for quantity in claim.quantities
    }
    measured = tuple(Measured(quantity, values[quantity.label]) for quantity in claim.quantities)
    parts = []
    for comparison in claim.parts:
        by_seed = zip(*(values[quantity.label] for quantity in comparison.quantities), strict=True)
        contrasts = tuple(
            comparison.contrast(figures) if all(map(math.isfinite, figures)) else math.nan for figures in by_seed
        )
        parts.append(Part(comparison, Test(contrasts)))
    return Finding(claim, measured, tuple(parts))


def spread(values: tuple[float, ...]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _read(quantity: Quantity, outcomes: Outcomes) -> float:
    """Its value, or not a number where one of its runs diverged and has no outcome."""
    return quantity.read(outcomes) if all(variant in outcomes for variant in quantity.variants) else math.nan


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
