"""Clusters among faces that nobody has labelled: how many, how large and how far apart, client by client."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from personae.report.content import Section
from personae.report.content import Table as ContentTable
from personae.report.records import Metrics, Run, read_run

SIZES = ("count", "smallest", "median", "largest")
NEEDED = (*SIZES, "outside", "silhouette")
FIGURES = ("clusters", "smallest", "median", "largest", "in no cluster", "silhouette")
CAPTION = (
    "What can be said of faces without labels: the number of clusters; how many images are in the smallest, the median "
    "and the largest; the share of the images that are in none (%); the mean silhouette by cosine, from -1 to 1, which "
    "is high where clusters are far apart. Clusters of training images are pseudo-labels; test images are clustered "
    "for this table alone."
)


class Line(NamedTuple):
    """Figures of one client after one stage, of its training or of its test images."""

    label: str
    images: str
    client: str
    figures: Metrics

    @property
    def cells(self) -> tuple[str, ...]:
        """As in FIGURES."""
        figures = self.figures
        sizes = (f"{figures[name]:.0f}" for name in SIZES)
        return (*sizes, f"{100 * figures['outside']:.1f}", f"{figures['silhouette']:.3f}")


def lines_of(run: Run) -> list[Line]:
    return [
        Line(stage.label, images, client, figures)
        for stage in run.stages
        for images, clients in run.records[stage.name].clusters.items()
        for client, figures in sorted(clients.items())
        if figures.keys() >= set(NEEDED)  # a client may send what it likes
    ]


def plain_clusters(run: Path) -> list[dict[str, Any]]:
    """All of it, for a script."""
    return [{**line._asdict(), "figures": dict(line.figures)} for line in lines_of(read_run(run))]


def cluster_section(run: Run) -> Section:
    """All of it, for a page."""
    rows = [[line.label, line.images, line.client, *line.cells] for line in lines_of(run)]
    tables = [ContentTable(["model", "images", "client", *FIGURES], rows, CAPTION, texts=3)] if rows else []
    return Section("clusters", "Clusters", "Groups that were found among faces without labels.", tables=tables)


def print_clusters(console: Console, run: Path) -> None:
    """Means over the clients: the report has each of them."""
    lines = lines_of(read_run(run))
    if not lines:
        return
    found = Table(
        title=Text("clusters of faces without labels, means over clients"), box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for at, title in enumerate(("model", "images", "clients", "clusters", "sizes", "in none", "silhouette")):
        found.add_column(Text(title), justify="right" if at > 1 else "left", overflow="fold")
    for label, images in dict.fromkeys((line.label, line.images) for line in lines):
        chosen = [line for line in lines if (line.label, line.images) == (label, images)]
        count, smallest, _, largest, outside, silhouette = Line(label, images, "", _mean(chosen)).cells
        sizes = f"{smallest} to {largest}"
        found.add_row(Text(label), images, str(len(chosen)), count, sizes, f"{outside}%", silhouette)
    console.print(found)


def _mean(lines: Sequence[Line]) -> Metrics:
    return {name: statistics.fmean(line.figures[name] for line in lines) for name in NEEDED}
