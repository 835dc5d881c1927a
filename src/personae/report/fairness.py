"""How evenly the models of a run serve its clients: those that trained, and those that joined later."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from personae.evaluation.fairness import Served
from personae.report.markup import Markup, table
from personae.report.records import Run, read_run
from personae.report.table import heading

HEAD = ("model", "clients", "metric", "mean", "deviation", "worst", "worst tenth", "mean gain")
NAME = 18  # letters of a model's name in a line on screen, where 80 columns have to do


class Line(NamedTuple):
    """One metric of one stage, over one kind of clients."""

    label: str
    clients: str
    metric: str
    served: Served

    @property
    def cells(self) -> tuple[str, ...]:
        """As in `HEAD`, in percent; where clients have models of their own, before and after."""
        shared, personal = self.served.shared, self.served.personal
        gains = self.served.gains.values()
        figures = ("mean", "deviation", "worst", "worst_decile")
        changes = (_change(getattr(shared, name), getattr(personal, name)) for name in figures)
        gain = f"{100 * sum(gains) / len(gains):+.2f}" if any(gains) else "–"
        return (self.label, f"{shared.clients} {self.clients}", heading(self.metric)[1], *changes, gain)


def lines_of(run: Run) -> list[Line]:
    """Stage by stage, metric by metric; of the last evaluation."""
    return [
        Line(stage.label, "new" if new else "trained", metric, found)
        for stage in run.stages
        for new in (False, True)
        for metric, found in run.records[stage.name].served(new=new).items()
    ]


def fairness_table(run: Run) -> Markup:
    """All of it, for a page."""
    lines = lines_of(run)
    if not lines:
        return Markup()
    caption = (
        "How evenly clients are served, each on its own test images, in percent: the global model, and after the arrow "
        "the model that each client uses. The deviation is that over the clients; a tenth is at least one client."
    )
    return table(HEAD, [line.cells for line in lines], caption, texts=3)


def plain_fairness(run: Path) -> list[dict[str, Any]]:
    """All of it, for a script."""
    return [
        {"label": line.label, "clients": line.clients, "metric": line.metric, **dataclasses.asdict(line.served)}
        for line in lines_of(read_run(run))
    ]


def print_fairness(console: Console, run: Path) -> None:
    """The first metric alone: the report has all of them."""
    lines = lines_of(read_run(run))
    chosen = [line for line in lines if line.metric == lines[0].metric]
    if chosen:
        console.print(_table(heading(chosen[0].metric)[1], chosen))


def _table(metric: str, lines: Sequence[Line]) -> Table:
    place = HEAD.index("metric")
    found = Table(title=Text(f"fairness: {metric} of each client (%)"), box=box.SIMPLE_HEAD, collapse_padding=True)
    for at, title in enumerate(HEAD):
        if at != place:
            narrow = title.replace(" ", "\n")  # the width is for the names of models
            found.add_column(Text(narrow), justify="right" if at > place else "left", no_wrap=at == 0)
    for line in lines:
        label, *figures = (cell for at, cell in enumerate(line.cells) if at != place)
        found.add_row(Text(fill(label, NAME)), *map(Text, figures))
    return found


def _change(before: float, after: float) -> str:
    return f"{100 * before:.2f}" if before == after else f"{100 * before:.2f} → {100 * after:.2f}"
