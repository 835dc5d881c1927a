"""A claim of a paper: its sentence, its figures, and the comparisons between measured quantities that decide it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from personae.experiment.recipes import RECIPES
from personae.reproduce.quantities import Outcomes, Quantity
from personae.reproduce.statistics import Test, Verdict


class Comparison(ABC):
    """One thing that a claim says about two quantities or more."""

    @property
    @abstractmethod
    def quantities(self) -> tuple[Quantity, ...]: ...

    @property
    @abstractmethod
    def text(self) -> str:
        """What would have to be so, in the labels of the quantities."""

    @property
    @abstractmethod
    def asked(self) -> str:
        """What is asked of the number that is tested; nothing where it only has to be above zero."""

    @abstractmethod
    def contrast(self, values: Sequence[float]) -> float:
        """One seed's figures as the one number that is tested."""

    @abstractmethod
    def met(self, contrast: float) -> bool:
        """Whether one number, of a seed or a mean over seeds, is what the comparison says."""

    @abstractmethod
    def verdict(self, test: Test) -> Verdict: ...

    @abstractmethod
    def p(self, test: Test) -> float:
        """The p of what the claim says: small where the measurements speak for it."""

    @property
    def reported(self) -> tuple[float, ...]:
        """The paper's figures in place of the quantities, or their difference; nothing where it gives none."""
        return ()

    def half_of_paper(self, means: Sequence[float]) -> float | None:  # noqa: ARG002
        """Half of what the paper reports, given the means of the quantities here; None where it gives no figure."""
        return None


@dataclass(frozen=True)
class Above(Comparison):
    """`high` > `low`, or by at least `by`; with a negative `by`, not lower by more than that.

    `paper` is what the paper reports in place of the two, in percent, or its difference where the two are no scores.
    """

    high: Quantity
    low: Quantity
    by: float = 0.0
    paper: tuple[float, float] | float | None = None

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return self.high, self.low

    @property
    def text(self) -> str:
        if not self.by:
            return f"{self.high.label} > {self.low.label}"
        sign = "+" if self.by > 0 else "−"
        return f"{self.high.label} > {self.low.label} {sign} {abs(self.by):g}"

    @property
    def asked(self) -> str:
        return _above(self.by)

    @property
    def reported(self) -> tuple[float, ...]:
        return self.paper if isinstance(self.paper, tuple) else () if self.paper is None else (self.paper,)

    def contrast(self, values: Sequence[float]) -> float:
        return values[0] - values[1]

    def met(self, contrast: float) -> bool:
        return contrast >= self.by

    def verdict(self, test: Test) -> Verdict:
        return test.exceeds(self.by)

    def p(self, test: Test) -> float:
        return test.above(self.by)

    def half_of_paper(self, means: Sequence[float]) -> float | None:
        """In points or in the share of the errors that is removed, whichever asks for less here: three points on a
        model that is right 90 times of 100 are as many on one that is right 99 times only if it makes no errors."""
        if self.paper is None:
            return None
        if isinstance(self.paper, float):
            return self.paper / 2
        high, low = self.paper
        return min(high - low, (high - low) / (100 - low) * (100 - means[1])) / 2


@dataclass(frozen=True)
class Near(Comparison):
    """`one` and `other` differ by less than `within`."""

    one: Quantity
    other: Quantity
    within: float

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return self.one, self.other

    @property
    def text(self) -> str:
        return f"|{self.one.label} − {self.other.label}| < {self.within:g}"

    @property
    def asked(self) -> str:
        return f"within {self.within:g}"

    def contrast(self, values: Sequence[float]) -> float:
        return values[0] - values[1]

    def met(self, contrast: float) -> bool:
        return abs(contrast) <= self.within

    def verdict(self, test: Test) -> Verdict:
        return test.stays_within(self.within)

    def p(self, test: Test) -> float:
        return max(test.above(-self.within), test.below(self.within))


@dataclass(frozen=True)
class Rising(Comparison):
    """The figures rise over `positions`: the slope of each seed's straight line is positive, or above `by`.

    Positions are one apart unless given. For a fall, name the quantities the other way round.
    """

    steps: tuple[Quantity, ...]
    positions: tuple[float, ...] | None = None
    by: float = 0.0

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return self.steps

    @property
    def text(self) -> str:
        return f"a rise from {self.steps[0].label} to {self.steps[-1].label}"

    @property
    def asked(self) -> str:
        return _above(self.by)

    def contrast(self, values: Sequence[float]) -> float:
        places = self.positions or tuple(range(len(values)))
        return float(np.polyfit(places, values, 1)[0])

    def met(self, contrast: float) -> bool:
        return contrast >= self.by

    def verdict(self, test: Test) -> Verdict:
        return test.exceeds(self.by)

    def p(self, test: Test) -> float:
        return test.above(self.by)


def _above(bound: float) -> str:
    return f"above {bound:g}".replace("-", "−") if bound else ""


@dataclass(frozen=True)
class Gate:
    """The situation that a claim speaks of, as a condition that can be measured: it is there where `condition` is met
    by the mean over the seeds."""

    situation: str
    condition: Comparison


@dataclass(frozen=True)
class Claim:
    """`paper` holds the figures that the paper reports, as it reports them; `beside` what is shown and not judged.

    `short` is the sentence in a few words, for tables. Where one of the `gates` is not passed, the claim is not judged:
    its situation is not there.
    """

    id: str
    sentence: str
    paper: str
    parts: tuple[Comparison, ...]
    beside: tuple[Quantity, ...] = ()
    gates: tuple[Gate, ...] = ()
    short: str = ""

    @property
    def added(self) -> bool:
        """Whether it is not one of the paper's, but ours, beside that of the same number."""
        return self.id[-1].isalpha()

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """Everything compared or shown, each once, in order."""
        compared = [quantity for part in self.parts for quantity in part.quantities]
        return tuple({quantity.label: quantity for quantity in (*compared, *self.beside)}.values())

    @property
    def gauges(self) -> tuple[Quantity, ...]:
        """What its gates compare."""
        return tuple(quantity for gate in self.gates for quantity in gate.condition.quantities)

    @property
    def variants(self) -> tuple[str, ...]:
        needed = (*self.quantities, *self.gauges)
        return tuple(dict.fromkeys(variant for quantity in needed for variant in quantity.variants))


class Pictures(Protocol):
    """Draws more than the claims' own plots into a folder, from the outcomes by seed; gives the files."""

    def __call__(self, outcomes: Mapping[int, Outcomes], out: Path) -> list[Path]: ...


@dataclass(frozen=True)
class System:
    """A paper: its claims, and optionally pictures beyond their plots, with the variants that these need.

    Its experiments are `<name>/<scale>.toml` in the folder `recipes`, a variant for each row of the paper's tables.
    """

    name: str
    paper: str
    claims: tuple[Claim, ...]
    pictures: Pictures | None = None
    pictured: tuple[str, ...] = ()
    recipes: Path = RECIPES
    leads: str = ""  # the claim that is run, judged and shown first: one that holds at the small scale within minutes
