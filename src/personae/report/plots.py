"""Figures as inline SVG that takes its colours from the page, so that it follows light, dark and print."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from personae.report.markup import Markup

# Colours that nobody would choose stand for the page's variables until the SVG is written.
INK, GRID = "#0000e1", "#0000e2"
SERIES = tuple(f"#0000f{number}" for number in range(1, 7))
VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
DASHES = ("-", "--", "-.", ":")
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 11,
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "path.simplify": False,
}
SMALL, WIDE = (5.6, 3.3), (11.4, 3.6)
POINTS = 200


@dataclass(frozen=True)
class Key:
    """How one series looks and what the legend calls it."""

    label: str
    series: int
    dash: int = 0

    @property
    def colour(self) -> str:
        return SERIES[self.series % len(SERIES)]

    @property
    def variable(self) -> str:
        return VARIABLES[self.colour]


@dataclass(frozen=True)
class Line:
    """A series over x; `band` is a deviation to shade on both sides."""

    key: Key
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[float] | None = None


GENUINE, IMPOSTOR = Key("pairs of one person", 0), Key("pairs of two persons", 1)


def curves(name: str, lines: Sequence[Line], ylabel: str, *, percent: bool, from_zero: bool) -> Markup:
    """Lines over rounds."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        for line in lines:
            kept = thin(len(line.x))
            x, y = np.asarray(line.x, dtype=float)[kept], np.asarray(line.y, dtype=float)[kept]
            _draw(axes, line.key, x, y, marker="o" if len(kept) <= 12 else None, markersize=4)
            if line.band is not None:
                band = np.asarray(line.band, dtype=float)[kept]
                axes.fill_between(x, y - band, y + band, color=line.key.colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="round", ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if from_zero:
            axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        return _svg(figure, name)


def roc_curves(name: str, lines: Sequence[Line]) -> Markup:
    """True over false accept rate; the false accept rate on a log axis."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        for line in lines:
            _draw(axes, line.key, line.x, line.y, drawstyle="steps-post")
        axes.set(xscale="log", ylim=(0, 1.02), xlabel="false accept rate", ylabel="true accept rate")
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda far, _: _power_of_ten(far)))
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return _svg(figure, name)


def det_curves(name: str, lines: Sequence[Line]) -> Markup:
    """False reject over false accept rate, both on log axes; where nothing is rejected, a curve ends."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        for line in lines:
            rejected = np.asarray(line.y, dtype=float)
            _draw(axes, line.key, line.x, np.where(rejected > 0, rejected, np.nan), drawstyle="steps-post")
        # Whole powers of ten, so that each axis has two marks at least.
        sides = [rate for line in lines for rate in line.x], [rate for line in lines for rate in line.y]
        limits = [(10.0 ** np.floor(np.log10(min([rate for rate in side if rate > 0] + [0.1]))), 1.0) for side in sides]
        axes.set(xscale="log", yscale="log", xlabel="false accept rate", ylabel="false reject rate")
        axes.set(xlim=limits[0], ylim=limits[1])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(numticks=8))
            axis.set_major_formatter(FuncFormatter(lambda rate, _: _power_of_ten(rate)))
        axes.minorticks_off()
        return _svg(figure, name)


def score_histogram(name: str, edges: Sequence[float], genuine: Sequence[int], impostor: Sequence[int]) -> Markup:
    """Each kind as a share of its own number: there are always far more impostor pairs."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        used = np.flatnonzero(np.add(genuine, impostor))
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, len(genuine))
        for kind, key in ((impostor, IMPOSTOR), (genuine, GENUINE)):
            share = np.asarray(kind[first:last]) / max(1, sum(kind))
            axes.stairs(share, edges[first : last + 1], fill=True, color=key.colour, alpha=0.3)
            axes.stairs(share, edges[first : last + 1], color=key.colour, linewidth=1.4)
        axes.set(xlabel="cosine score", ylabel="share of the pairs", ylim=(0, None))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return _svg(figure, name)


def client_bars(
    name: str, clients: Sequence[str], values: Mapping[Key, Sequence[float]], notes: Sequence[str] = ()
) -> Markup:
    """For each client one bar of each series, and a note above them."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(WIDE)
        places, width = np.arange(len(clients)), 0.8 / len(values)
        for turn, (key, heights) in enumerate(values.items()):
            left = places - 0.4 + turn * width
            axes.bar(left, heights, width, align="edge", color=key.colour)
        for at, note in enumerate(notes):
            known = [heights[at] for heights in values.values() if np.isfinite(heights[at])]
            axes.text(at, max(known, default=0) + 0.01, note, ha="center", va="bottom", fontsize=7)
        short = [client if len(client) <= 18 else f"{client[:17]}…" for client in clients]
        axes.set_xticks(places, short, rotation=90 if len(clients) > 8 else 0, fontsize=9)
        axes.grid(visible=False, axis="x")
        axes.set(xlim=(-0.6, len(clients) - 0.4), ylim=(0, 1.08 if notes else 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return _svg(figure, name)


def client_distribution(name: str, values: Mapping[Key, Sequence[float]]) -> Markup:
    """For more clients than bars can show: the values of each series, sorted."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(WIDE)
        for key, all_ in values.items():
            ordered = np.sort(np.asarray(all_, dtype=float))
            kept = thin(len(ordered))
            _draw(axes, key, (kept + 1) / len(ordered), ordered[kept], drawstyle="steps-pre")
        axes.set(xlabel="share of the clients, worst first", xlim=(0, 1), ylim=(0, 1.02))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return _svg(figure, name)


def thin(count: int, most: int = POINTS) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """At most `most` of `count` positions, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _draw(axes: Axes, key: Key, x: Any, y: Any, **style: Any) -> None:
    axes.plot(x, y, color=key.colour, linestyle=DASHES[key.dash % len(DASHES)], **style)


def _power_of_ten(value: float) -> str:
    exponent = round(np.log10(value))
    return "1" if exponent == 0 else "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _svg(figure: Figure, name: str) -> Markup:
    """The figure as an element to put into a page: same input, same text; no ids that other figures might have."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # The page's fonts show the text, so it does not matter what the font that measures it lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    referenced = set(re.findall(r'(?:href="|url\()#([\w.-]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in referenced else "", svg)
    svg = re.sub(r'(href="|url\()#([\w.-]+)', rf"\1#{name}-\2", svg)
    svg = re.sub("|".join(VARIABLES), lambda found: VARIABLES[found[0]], svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    return Markup(re.sub(r"<svg[^>]*>", f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">', svg, count=1))
