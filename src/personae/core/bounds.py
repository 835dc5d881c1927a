"""Bounds of settings, declared with their types: `lr: PositiveFloat`, `cut: Annotated[float, within("[0, 0.5)")]`.

What is `Bounded` refuses other values when it is made. An experiment's values are checked by the same declarations
before the classes are imported (`experiment/kinds.py`), so nothing here may need PyTorch.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Annotated, Any


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a number must do, in words after "it must". Not a number (nan) keeps to no bound."""

    words: str
    holds: Callable[[float], bool] = dataclasses.field(compare=False)
    advice: str = ""

    def problem(self, name: str, value: float) -> str | None:
        advice = f"; {self.advice}" if self.advice else ""
        return None if self.holds(value) else f"{name} is {value}, it must {self.words}{advice}"


def at_least(least: int, advice: str = "") -> Bound:
    words = "not be negative" if least == 0 else f"be at least {least}"
    return Bound(words, lambda value: value >= least, advice)


def above(limit: float) -> Bound:
    return Bound("be positive" if limit == 0 else f"be above {limit}", lambda value: value > limit)


def positive(advice: str = "") -> Bound:
    return Bound("be positive and finite", lambda value: 0 < value < inf, advice)


def up_to(least: int, most: int) -> Bound:
    return Bound(f"be from {least:,} to {most:,}", lambda value: least <= value <= most)


def within(interval: str) -> Bound:
    """As mathematics writes it: "(0, 1]" is without 0 and with 1."""
    low, high = map(float, interval[1:-1].split(","))
    begins = operator.ge if interval[0] == "[" else operator.gt
    ends = operator.le if interval[-1] == "]" else operator.lt
    return Bound(f"be in {interval}", lambda value: begins(value, low) and ends(value, high))


PositiveInt = Annotated[int, at_least(1)]
NonNegativeInt = Annotated[int, at_least(0)]
PositiveFloat = Annotated[float, positive()]
NonNegativeFloat = Annotated[float, Bound("be finite and not negative", lambda value: 0 <= value < inf)]


class Bounded:
    """A dataclass whose values keep to the bounds of its fields."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, bound in _bounds(kind):
            value = getattr(self, name)
            if value is not None and (problem := bound.problem(name, value)):
                raise ValueError(problem)


@cache
def _bounds(kind: Any) -> tuple[tuple[str, Bound], ...]:
    """The bounds of each field, in their order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, bound) for field in dataclasses.fields(kind) for bound in declared(hints[field.name]))


def declared(hint: Any) -> Iterator[Bound]:
    """The bounds in a type, or in one of its alternatives."""
    if typing.get_origin(hint) is Annotated:
        yield from (each for each in hint.__metadata__ if isinstance(each, Bound))
    else:
        for alternative in typing.get_args(hint) if type(None) in typing.get_args(hint) else ():
            yield from declared(alternative)
