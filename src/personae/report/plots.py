"""Figures as inline SVG that takes its colours from the page, so that it follows light, dark and print."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from personae.report.wording import percent as in_percent

# Colours that nobody would choose stand for the page's variables until the SVG is written.
INK, GRID = "#0000e1", "#0000e2"
SERIES = tuple(f"#0000f{number}" for number in range(1, 7))
VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
DASHES = ("-", "--", "-.", ":")
PATTERNS = ("none", "7 4", "7 3 2 3", "2 3")
STYLE: Any = {
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
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

    @property
    def pattern(self) -> str:
        """The dashes of a legend's line."""
        return PATTERNS[self.dash % len(PATTERNS)]


@dataclass(frozen=True)
class Line:
    """A series over x; `band` is a deviation to shade on both sides."""

    key: Key
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[float] | None = None


GENUINE, IMPOSTOR = Key("pairs of one person", 0), Key("pairs of two persons", 1)


def curves(
    name: str, lines: Sequence[Line], ylabel: str, *, percent: bool, limits: tuple[float, float] | None = None
) -> Markup:
    """Lines over rounds; of a single value, a mark with its figure. `limits` are shared with other figures."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        for number, line in enumerate(lines):
            kept = thin(len(line.x))
            x, y = np.asarray(line.x, dtype=float)[kept], np.asarray(line.y, dtype=float)[kept]
            _draw(axes, line.key, x, y, marker="o" if len(kept) <= 12 else None, markersize=4 if len(kept) > 1 else 7)
            if len(kept) == 1 and np.isfinite(y[0]):
                text = f"{y[0]:.1%}" if percent else f"{y[0]:.3g}"
                away = (0, -14) if number % 2 else (0, 6)  # neighbours do not cover each other
                axes.annotate(text, (x[0], y[0]), away, textcoords="offset points", ha="center", fontsize=9)
            if line.band is not None:
                band = np.asarray(line.band, dtype=float)[kept]
                axes.fill_between(x, y - band, y + band, color=line.key.colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="round", ylabel=ylabel)
        rounds = [number for line in lines for number in line.x]
        first, last = min(rounds, default=0), max(rounds, default=1)
        axes.set_xlim(first - 0.04 * max(1, last - first), last + 0.04 * max(1, last - first))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if limits is not None:
            axes.set_ylim(*limits)
        return _svg(figure, name)


def roc_curves(name: str, lines: Sequence[Line]) -> Markup:
    """True over false accept rate; the false accept rate on a log axis."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        for line in lines:
            _draw(axes, line.key, line.x, line.y, drawstyle="steps-post")
        axes.set(xscale="log", ylim=(0, 1.02), xlabel="false accept rate", ylabel="true accept rate")
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda far, _: in_percent(far)))
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
            axis.set_major_formatter(FuncFormatter(lambda rate, _: in_percent(rate)))
        axes.minorticks_off()
        return _svg(figure, name)


def score_histogram(
    name: str,
    edges: Sequence[float],
    genuine: Sequence[int],
    impostor: Sequence[int],
    limits: tuple[tuple[float, float], float] | None = None,
) -> Markup:
    """Each kind as a share of its own number: there are always far more impostor pairs.

    `limits`: scores and the highest share that figures beside this one have in common.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _figure(SMALL)
        (low, high), top = limits or histogram_limits([(edges, genuine, impostor)])
        for kind, key in ((impostor, IMPOSTOR), (genuine, GENUINE)):
            share = np.asarray(kind) / max(1, sum(kind))
            axes.stairs(share, edges, fill=True, color=key.colour, alpha=0.3)
            axes.stairs(share, edges, color=key.colour, linewidth=1.4)
        axes.set(xlabel="cosine score", ylabel="share of the pairs", xlim=(low, high), ylim=(0, 1.05 * top))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return _svg(figure, name)


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
    """For each client one bar of each series; those with a dash are hatched."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(WIDE)
        places, width = np.arange(len(clients)), 0.8 / len(values)
        for turn, (key, heights) in enumerate(values.items()):
            left = places - 0.4 + turn * width
            bars = axes.bar(left, heights, 0.92 * width, align="edge", color=key.colour)
            for bar in bars if key.dash else ():
                bar.set(facecolor="none", edgecolor=key.colour, hatch="////")
        short = [client if len(client) <= 18 else f"{client[:17]}…" for client in clients]
        axes.set_xticks(places, short, rotation=90 if len(clients) > 8 else 0, fontsize=9)
        axes.grid(visible=False, axis="x")
        axes.set(xlim=(-0.6, len(clients) - 0.4), ylim=(0, 1.02))
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
    return figure, figure.add_subplot()


def _draw(axes: Axes, key: Key, x: Any, y: Any, **style: Any) -> None:
    axes.plot(x, y, color=key.colour, linestyle=DASHES[key.dash % len(DASHES)], **style)


def _svg(figure: Figure, name: str) -> Markup:
    """The figure as an element to put into a page: same input, same text; no ids that other figures might have."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # The page's fonts show the text, so it does not matter what the font that measures it lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # `savefig` would draw it twice.
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})  # type: ignore[no-untyped-call]
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
