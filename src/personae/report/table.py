"""The models of a run side by side: one row for its start and for each stage, one column for each metric."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from personae.evaluation.spread import Spread
from personae.report.records import Metrics, Record, Run, read_run
from personae.report.wording import percent

DEVIATION = "_std"
CLIENTS = "clients/"
START = "start"
RATES = {"tar": "TAR at FAR", "tpir": "TPIR at FPIR", "fmr": "FMR at FAR", "fnmr": "FNMR at FAR"}
RATE = re.compile(rf"\b({'|'.join(RATES)})@([\d.]+e[+-]\d+)")
NAMES = {"rank1": "rank-1", "f_score": "F-score", "nmi": "NMI"}


class Row(NamedTuple):
    """Metrics of the start, or final ones of a stage.

    They are named like `heldout/accuracy`, and like `clients/personal/rank1` for means over clients. A deviation stands
    under the name of its metric with `_std` after it.
    """

    label: str
    metrics: dict[str, float]


def comparison(run: Path) -> list[Row]:
    return rows_of(read_run(run))


def rows_of(run: Run) -> list[Row]:
    start = start_metrics(run)
    rows = [Row(stage.label, stage_metrics(run.records[stage.name])) for stage in run.stages]
    return [Row(START, start), *rows] if start else rows


def own_rows_of(run: Run) -> list[Row]:
    """The same without what a stage has from the one before: where it has no shared model, only personal figures."""
    inherited = {stage.label for stage in run.stages if not run.has_shared_model(stage)}
    return [
        Row(label, _personal(metrics)) if label in inherited else Row(label, metrics) for label, metrics in rows_of(run)
    ]


def _personal(metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(f"{CLIENTS}personal/")}


def start_metrics(run: Run) -> dict[str, float]:
    """Of the given weights or the random ones that the first stage begins with, and every other that follows none."""
    record = run.records[run.stages[0].name] if run.stages else Record()
    return {**record.benchmarks.get(0, {}), **_over_clients(record, 0)}


def stage_metrics(record: Record) -> dict[str, float]:
    """Of the stage's model as it is now, none before its first round."""
    latest = max(record.clients, default=0)
    return {**record.final_metrics, **record.fractions, **(_over_clients(record, latest) if latest else {})}


def _over_clients(record: Record, round_: int) -> dict[str, float]:
    spreads = _distinct(record.clients.get(round_, {})).items()
    means = {f"{CLIENTS}{name}": figure.mean for name, figure in spreads}
    return means | {f"{CLIENTS}{name}{DEVIATION}": figure.deviation for name, figure in spreads}


def _distinct(figures: Mapping[str, Spread]) -> Mapping[str, Spread]:
    """Without those of personal models where nobody has one, and the global model's stand for both."""
    shared = {name: figure for name, figure in figures.items() if not name.startswith("personal/")}
    twins = (figures.get(name.replace("personal/", "global/", 1)) == figure for name, figure in figures.items())
    return shared if all(twins) else figures


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Every metric that some row has, in the order of appearance, deviations apart; benchmarks before clients."""
    names = dict.fromkeys(name for row in rows for name in row.metrics if not name.endswith(DEVIATION))
    return sorted(names, key=lambda name: name.startswith(CLIENTS))


def heading(metric: str) -> tuple[str, str]:
    """Where a metric is measured, and its name: ("heldout", "TAR at FAR 0.1%"), ("clients", "rank-1, personal")."""
    where, _, name = metric.removeprefix(CLIENTS).rpartition("/")
    readable = RATE.sub(lambda found: f"{RATES[found[1]]} {percent(float(found[2]))}", NAMES.get(name, name))
    return ("clients", f"{readable}, {where}") if metric.startswith(CLIENTS) else (where, readable)


def among_everybody(metric: str) -> bool:
    """Whether a client's metric compares its people with everybody's."""
    return metric.rpartition("/")[2].startswith(("1:1 ", "1:N "))


def figure_cell(metric: str, value: float) -> str:
    """In percent; a ratio of two rates as how many times one is the other."""
    return f"{value:.2f}x" if "_ratio" in metric else f"{100 * value:.2f}"


def cell(metrics: Metrics, name: str) -> str:
    """A fraction in percent, with its deviation where there is one."""
    value, deviation = metrics.get(name), metrics.get(name + DEVIATION)
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.2f}" if deviation is None else f"{100 * value:.2f} ± {100 * deviation:.2f}"
