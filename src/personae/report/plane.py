"""What is drawn between two axes, as inline SVG. The page gives it its colours: they follow light, dark and print.

A plotting library would take longer to import than a report takes to write.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import east_asian_width

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

INK, GRID = "var(--ink)", "var(--grid)"
TEXT, SMALL_TEXT = 11.0, 9.0  # heights of letters, in the units of the picture
TICK, GAP = 3.5, 3.5  # length of the marks of an axis, and the space up to their words
MOST, MOST_POWERS = 9, 5  # steps of an axis, so that the words at them keep apart; those of small rates are long
FACTORS = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps that people count in

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From where to where an axis goes, and the values at which it has a mark, with words."""

    low: float
    high: float
    marks: Sequence[tuple[float, str]]
    title: str = ""
    log: bool = False
    grid: bool = True
    text: float = TEXT
    upright: bool = False  # the words are turned, so that many have room

    def share(self, values: npt.ArrayLike) -> Numbers:
        """How far along the axis each value is, from 0 to 1. What lies beyond an end is at that end."""
        found = np.asarray(values, dtype=float)
        scale: Callable[[Any], Any] = np.log10 if self.log else np.asarray
        inside = scale(np.clip(found, self.low, self.high))
        share = (inside - scale(self.low)) / (scale(self.high) - scale(self.low))
        return np.where(np.isfinite(found), share, np.nan)


def even(
    low: float, high: float, words: Callable[[float, float], str], title: str = "", *, whole: bool = False
) -> Axis:
    """An axis with marks at even steps, of at least 1 if only whole numbers mean something.

    `words` are those of a value and a step.
    """
    least = max((high - low) / MOST, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(least))
    steps = (factor * power for factor in FACTORS)
    step = next(step for step in steps if step >= least and not (whole and step % 1))
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return Axis(low=low, high=high, marks=[(at * step, words(at * step, step)) for at in numbers], title=title)


def powers(values: Iterable[float], words: Callable[[float], str], title: str) -> Axis:
    """A logarithmic axis of rates up to 1. It begins at a power of ten, so that it has two marks at least."""
    lowest = math.floor(math.log10(min([value for value in values if value > 0] + [0.1])))
    marks = [10.0**power for power in range(0, lowest - 1, -math.ceil(-lowest / MOST_POWERS))]
    return Axis(low=10.0**lowest, high=1.0, marks=[(mark, words(mark)) for mark in marks], title=title, log=True)


def as_number(value: float, step: float) -> str:
    """All values of an axis with the decimals that their step needs."""
    decimals = _decimals(step)
    return f"{round(value, decimals):.12g}" if decimals > 4 else f"{value:.{decimals}f}".replace("-", "−")


def as_percentage(value: float, step: float) -> str:
    return f"{100 * value:.{_decimals(100 * step)}f}%"


def steps(x: npt.ArrayLike, y: npt.ArrayLike, *, after: bool) -> tuple[Numbers, Numbers]:
    """The corners of a stairway that takes the height of a point after it, or before it."""
    twice, heights = np.repeat(np.asarray(x, dtype=float), 2), np.repeat(np.asarray(y, dtype=float), 2)
    return (twice[1:], heights[:-1]) if after else (twice[:-1], heights[1:])


class Plane:
    """A picture with two axes, to which marks are added."""

    def __init__(self, size: tuple[float, float], x: Axis, y: Axis) -> None:
        self.width, self.height = size
        self.x, self.y = x, y
        beside = TICK + GAP + max((_width(words, y.text) for _, words in y.marks), default=0.0)
        below = TICK + GAP + (max(_width(words, x.text) for _, words in x.marks) if x.upright else 1.2 * x.text)
        self.left = beside + (1.8 * TEXT if y.title else TICK)
        self.bottom = self.height - below - (1.5 * TEXT if x.title else TICK)
        self.top, self.right = TEXT / 2, self.width - self._overhang()
        self._parts: list[str] = []

    def path(self, x: npt.ArrayLike, y: npt.ArrayLike, style: str) -> None:
        """A line through these points, interrupted where one is not finite."""
        across, up = self._place(x, y)
        known = np.isfinite(across) & np.isfinite(up)
        first = known & ~np.append(False, known[:-1])
        corners = zip(across[known], up[known], first[known], strict=True)
        text = "".join(f"{'M' if begins else 'L'}{right:.1f} {down:.1f}" for right, down, begins in corners)
        self._parts.append(f'<path d="{text}" style="{style}"/>')

    def dots(self, x: npt.ArrayLike, y: npt.ArrayLike, radius: float, colour: str) -> None:
        for across, up in zip(*self._place(x, y), strict=True):
            if math.isfinite(across) and math.isfinite(up):
                self._parts.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="{radius}" style="fill: {colour}"/>')

    def words(self, x: float, y: float, text: str, *, below: bool) -> None:
        """A word above a point, or below it."""
        across, up = self._place([x], [y])
        self._parts.append(_text(across[0], up[0] + (14 if below else -6), text, SMALL_TEXT))

    def hatching(self, name: str, colour: str) -> str:
        """What to fill with for oblique lines; no other element of the page has this name."""
        line = f'<path d="M0 0V5" style="stroke: {colour}; stroke-width: 2"/>'
        settings = 'width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
        self._parts.append(f'<pattern id="{name}" {settings}>{line}</pattern>')
        return f"url(#{name})"

    def svg(self) -> Markup:
        frame = f"M{self.left:.1f} {self.top:.1f}V{self.bottom:.1f}H{self.right:.1f}"
        spines = f'<path d="{frame}" style="fill: none; stroke: {GRID}; stroke-width: 0.8"/>'
        parts = "".join([*self._across(), *self._up(), *self._parts, spines])
        return Markup(f'<svg viewBox="0 0 {self.width:g} {self.height:g}" aria-hidden="true">{parts}</svg>')

    def _place(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Numbers, Numbers]:
        across = self.left + (self.right - self.left) * self.x.share(x)
        return across, self.bottom - (self.bottom - self.top) * self.y.share(y)

    def _across(self) -> Iterable[str]:
        """The horizontal axis, with its lines behind what is drawn."""
        below = self.bottom + TICK + GAP
        for value, words in self.x.marks:
            ((at,), _) = self._place([value], [self.y.low])
            yield _line(at, self.bottom + TICK, at, self.top if self.x.grid else self.bottom)
            if self.x.upright:
                yield _text(at + 0.35 * self.x.text, below, words, self.x.text, "end", turned=True)
            else:
                yield _text(at, below + 0.8 * self.x.text, words, self.x.text)
        if self.x.title:
            yield _text((self.left + self.right) / 2, self.height - 0.35 * TEXT, self.x.title, TEXT)

    def _up(self) -> Iterable[str]:
        for value, words in self.y.marks:
            _, (at,) = self._place([self.x.low], [value])
            yield _line(self.left - TICK, at, self.right if self.y.grid else self.left, at)
            yield _text(self.left - TICK - GAP, at + 0.35 * self.y.text, words, self.y.text, "end")
        if self.y.title:
            yield _text(TEXT, (self.top + self.bottom) / 2, self.y.title, TEXT, turned=True)

    def _overhang(self) -> float:
        """The space that words below the axis need beyond its end."""
        space = self.width - self.left
        words = () if self.x.upright else self.x.marks
        return max(
            [TICK, *(_width(text, self.x.text) / 2 - space * (1 - float(self.x.share(at))) for at, text in words)]
        )


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" style="stroke: {GRID}; stroke-width: 0.6"/>'


def _text(x: float, y: float, words: str, size: float, anchor: str = "middle", *, turned: bool = False) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}"' + (f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else "")
    style = f"font-size: {size:g}px; text-anchor: {anchor}; fill: {INK}"
    return Markup('<text {} style="{}">{}</text>').format(Markup(place), style, words)


def _width(words: str, size: float) -> float:
    """About how wide words are. The page's font is not known here, and few are wider."""
    return size * sum(1.0 if east_asian_width(letter) in "WF" or letter == "%" else 0.62 for letter in words)


def _decimals(step: float) -> int:
    return next((digits for digits in range(12) if math.isclose(round(step, digits), step)), 12)
