"""The figures of a report, each drawn on a `plane`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from personae.report.plane import SMALL_TEXT, Axis, Plane, as_number, as_percentage, even, powers, steps
from personae.report.wording import percent as in_percent

SERIES = tuple(f"var(--series-{number})" for number in range(1, 7))
PATTERNS = ("none", "7 4", "7 3 2 3", "2 3")
SMALL, WIDE = (403.0, 238.0), (821.0, 259.0)
POINTS = 200


@dataclass(frozen=True)
class Key:
    """How one series looks and what the legend calls it."""

    label: str
    series: int
    dash: int = 0

    @property
    def colour(self) -> str:
        """A variable of the page."""
        return SERIES[self.series % len(SERIES)]

    @property
    def pattern(self) -> str:
        """The dashes of its line."""
        return PATTERNS[self.dash % len(PATTERNS)]

    @property
    def stroke(self) -> str:
        """Its line."""
        return f"fill: none; stroke: {self.colour}; stroke-width: 1.8; stroke-dasharray: {self.pattern}"


@dataclass(frozen=True)
class Line:
    """A series over x; `band` is a deviation to shade on both sides."""

    key: Key
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[float] | None = None


GENUINE, IMPOSTOR = Key("pairs of one person", 0), Key("pairs of two persons", 1)


def curves(
    lines: Sequence[Line],
    ylabel: str,
    *,
    percent: bool,
    limits: tuple[float, float] | None = None,
    xlabel: str = "round",
    whole: bool = True,
) -> Markup:
    """Lines over rounds, or over what else is counted; of a single value, a mark with its figure.

    `limits` are shared with other figures. Only `whole` numbers are marked, unless there are others.
    """
    along = [number for line in lines for number in line.x]
    first, last = min(along, default=0), max(along, default=1)
    beyond = 0.04 * ((last - first) or 1)
    x = even(first - beyond, last + beyond, as_number, xlabel, whole=whole)
    low, high = limits or _range([value for line in lines for value in line.y])
    plane = Plane(SMALL, x, even(low, high, as_percentage if percent else as_number, ylabel))
    for number, line in enumerate(lines):
        kept = thin(len(line.x))
        at, y = np.asarray(line.x, dtype=float)[kept], np.asarray(line.y, dtype=float)[kept]
        if line.band is not None:
            band = np.asarray(line.band, dtype=float)[kept]
            known = np.isfinite(y + band)
            there, above, below = at[known], (y + band)[known], (y - band)[known]
            around = np.append(there, there[::-1]), np.append(above, below[::-1])
            plane.path(*around, f"fill: {line.key.colour}; fill-opacity: 0.15")
        plane.path(at, y, line.key.stroke)
        if len(kept) <= 12:
            plane.dots(at, y, 2 if len(kept) > 1 else 3.5, line.key.colour)
        if len(kept) == 1 and np.isfinite(y[0]):
            text = f"{y[0]:.1%}" if percent else f"{y[0]:.3g}"
            plane.words(at[0], y[0], text, below=bool(number % 2))  # neighbours do not cover each other
    return plane.svg()


def roc_curves(lines: Sequence[Line]) -> Markup:
    """True over false accept rate; the false accept rate on a log axis."""
    x = powers([rate for line in lines for rate in line.x], in_percent, "false accept rate")
    plane = Plane(SMALL, x, _rates("true accept rate"))
    for line in lines:
        plane.path(*steps(line.x, line.y, after=True), line.key.stroke)
    return plane.svg()


def det_curves(lines: Sequence[Line]) -> Markup:
    """False reject over false accept rate, both on log axes; where nothing is rejected, a curve ends."""
    x = powers([rate for line in lines for rate in line.x], in_percent, "false accept rate")
    y = powers([rate for line in lines for rate in line.y], in_percent, "false reject rate")
    plane = Plane(SMALL, x, y)
    for line in lines:
        rejected = np.asarray(line.y, dtype=float)
        plane.path(*steps(line.x, np.where(rejected > 0, rejected, np.nan), after=True), line.key.stroke)
    return plane.svg()


def score_histogram(
    edges: Sequence[float],
    genuine: Sequence[int],
    impostor: Sequence[int],
    limits: tuple[tuple[float, float], float] | None = None,
) -> Markup:
    """Each kind as a share of its own number: there are always far more impostor pairs.

    `limits`: scores and the highest share that figures beside this one have in common.
    """
    (low, high), top = limits or histogram_limits([(edges, genuine, impostor)])
    x = even(low, high, as_number, "cosine score")
    plane = Plane(SMALL, x, even(0, 1.05 * top, as_percentage, "share of the pairs"))
    for kind, key in ((impostor, IMPOSTOR), (genuine, GENUINE)):
        shares = np.asarray(kind) / max(1, sum(kind))
        corners = np.concatenate(([0.0], np.repeat(shares, 2), [0.0]))
        style = f"fill: {key.colour}; fill-opacity: 0.3; stroke: {key.colour}; stroke-width: 1.4"
        plane.path(np.repeat(edges, 2), corners, style)
    return plane.svg()


def histogram_limits(
    found: Sequence[tuple[Sequence[float], Sequence[int], Sequence[int]]],
) -> tuple[tuple[float, float], float]:
    """The range of scores that some pair has, and the highest share of a bin."""
    lows, highs, tops = [], [], []
    for edges, genuine, impostor in found:
        used = np.flatnonzero(np.add(genuine, impostor))
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, len(genuine))
        lows.append(edges[first])
        highs.append(edges[last])
        tops += [max(kind, default=0) / max(1, sum(kind)) for kind in (genuine, impostor)]
    return (min(lows), max(highs)), max(tops) or 1.0


def client_bars(name: str, clients: Sequence[str], values: Mapping[Key, Sequence[float]]) -> Markup:
    """For each client one bar of each series; those with a dash are hatched. No other figure has this name."""
    short = [client if len(client) <= 18 else f"{client[:17]}…" for client in clients]
    x = Axis(low=-0.6, high=len(clients) - 0.4, marks=[*enumerate(short)], grid=False, text=SMALL_TEXT)
    plane = Plane(WIDE, replace(x, upright=len(clients) > 8), _rates())
    places, width = np.arange(len(clients)), 0.8 / len(values)
    for turn, (key, heights) in enumerate(values.items()):
        left, gap = places - 0.4 + turn * width, np.full(len(clients), np.nan)
        right, foot = left + 0.92 * width, np.zeros(len(clients))
        corners = np.column_stack((left, left, right, right, gap)).ravel()
        fill = plane.hatching(f"{name}-{turn}", key.colour) if key.dash else key.colour
        border = f"; stroke: {key.colour}" if key.dash else ""
        plane.path(corners, np.column_stack((foot, heights, heights, foot, gap)).ravel(), f"fill: {fill}{border}")
    return plane.svg()


def client_distribution(values: Mapping[Key, Sequence[float]]) -> Markup:
    """For more clients than bars can show: the values of each series, sorted."""
    plane = Plane(WIDE, even(0, 1, as_percentage, "share of the clients, worst first"), _rates())
    for key, all_ in values.items():
        ordered = np.sort(np.asarray(all_, dtype=float))
        kept = thin(len(ordered))
        plane.path(*steps((kept + 1) / len(ordered), ordered[kept], after=False), key.stroke)
    return plane.svg()


def thin(count: int, most: int = POINTS) -> npt.NDArray[np.int64]:
    """At most `most` of `count` positions, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _rates(title: str = "") -> Axis:
    """All rates there can be, with room for the line of one that is 1."""
    return even(0, 1.02, as_percentage, title)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The range that holds these values, with some room."""
    known = [value for value in values if np.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return low - room, high + room
