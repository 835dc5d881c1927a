"""A picture of a partition: how many images and identities each client holds."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from personae.data.faces import FaceSet
from personae.data.partition import Holding, Partition
from personae.files import replacing
from personae.words import counted

_COLOURS = {"train": "#3b6ea5", "val": "#e0a33e", "test": "#b5523b"}
_IDENTITIES, _NEW = "#5a7d5a", "#ececec"
_NAMED, _BARS = 40, 150
_SKEWED = 30


def plot_partition(faces: FaceSet, partition: Partition, path: Path) -> None:
    """Save a PNG. Few clients are named; many are drawn from the largest to the smallest."""
    holdings = partition.summary(faces)
    named = len(holdings) <= _NAMED
    if not named:
        holdings = sorted(holdings, key=lambda holding: (holding.new, -_images(holding)))
    figure = Figure(figsize=(max(6.0, min(12.0, 2.0 + 0.3 * len(holdings))), 6.0), layout="constrained", dpi=120)
    images, identities = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_images(images, holdings)
    _draw_identities(identities, holdings)
    for axes in (images, identities):
        _mark_new(axes, holdings)
    _name_clients(identities, holdings, named)
    held = sum(map(_images, holdings))
    figure.suptitle(f"{faces.name}: {held:,} of {counted(len(faces), 'image')} at {counted(len(holdings), 'client')}")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_images(axes: Axes, holdings: list[Holding]) -> None:
    below = np.zeros(len(holdings))
    for split, colour in _COLOURS.items():
        counts = np.array([getattr(holding, split) for holding in holdings])
        _bars(axes, counts, colour, split, below)
        below += counts
    axes.set_ylabel("images")
    axes.legend(loc="upper right", ncols=len(_COLOURS), frameon=False)
    axes.set_ylim(0, 1.15 * below.max())  # room for the legend


def _draw_identities(axes: Axes, holdings: list[Holding]) -> None:
    counts = np.array([holding.identities for holding in holdings])
    _bars(axes, counts, _IDENTITIES, "identities", np.zeros(len(holdings)))
    axes.set_ylabel("identities")
    if counts.max() > _SKEWED * np.median(counts):
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)


def _bars(axes: Axes, counts: np.ndarray, colour: str, label: str, below: np.ndarray) -> None:
    """Bars with gaps while they can be told apart, then one solid area."""
    if len(counts) <= _BARS:
        axes.bar(np.arange(len(counts)), counts, bottom=below, width=0.8, color=colour, label=label)
    else:
        edges = np.arange(len(counts) + 1) - 0.5
        axes.stairs(below + counts, edges, baseline=below, fill=True, color=colour, label=label)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.margins(x=0.01)


def _mark_new(axes: Axes, holdings: list[Holding]) -> None:
    """New clients come last; a grey ground sets them apart."""
    new = sum(holding.new for holding in holdings)
    if new:
        start = len(holdings) - new - 0.5
        axes.axvspan(start, len(holdings) - 0.5, color=_NEW, zorder=0)
        middle, where = len(holdings) - 0.5 - new / 2, axes.get_xaxis_transform()
        axes.text(middle, 0.86, "new", ha="center", va="top", color="#666666", transform=where)


def _name_clients(axes: Axes, holdings: list[Holding], named: bool) -> None:
    if named:
        axes.set_xticks(range(len(holdings)), [holding.client for holding in holdings], rotation=60, ha="right")
    else:
        axes.set_xlabel("clients, from the largest to the smallest")


def _images(holding: Holding) -> int:
    return holding.train + holding.val + holding.test
