"""How evenly the models of a run serve its clients: those that trained, and those that joined later."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from personae.evaluation.spread import Served
from personae.report.content import Section, Table
from personae.report.records import Run, read_run
from personae.report.table import heading

HEAD = ("model", "clients", "metric", "mean", "deviation", "worst", "worst tenth", "mean gain")


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


def fairness_section(run: Run) -> Section:
    """All of it, for a page."""
    lines = lines_of(run)
    caption = (
        "Each client on its own test images, in percent: the global model, and after the arrow "
        "the model that each client uses. The deviation is that over the clients; a tenth is at least one client."
    )
    tables = [Table(HEAD, [line.cells for line in lines], caption, texts=3)] if lines else []
    return Section(
        "fairness",
        "Fairness",
        "Do the models work equally well for all clients? The worst client and the worst tenth.",
        tables=tables,
    )


def plain_fairness(run: Path) -> list[dict[str, Any]]:
    """All of it, for a script."""
    return [
        {"label": line.label, "clients": line.clients, "metric": line.metric, **dataclasses.asdict(line.served)}
        for line in lines_of(read_run(run))
    ]


def _change(before: float, after: float) -> str:
    return f"{100 * before:.2f}" if before == after else f"{100 * before:.2f} → {100 * after:.2f}"
