"""How evenly the models of a run serve several populations of held-out people, at one threshold for all of them."""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from personae.report.content import Section, Table
from personae.report.records import Populations, Record, Run, read_run
from personae.report.table import figure_cell, heading
from personae.report.verdict import nearest
from personae.report.wording import percent

LEAD = "Does one threshold work equally well for every population of the held-out people?"
ERRORS = ("fnmr", "fmr")
SIZED = ("model", "population", "people", "pairs of one person", "pairs of two people")
UNEVEN = (
    "model",
    "at",
    *(f"{error.upper()}, {figure}" for error in ERRORS for figure in ("ratio", "Gini coefficient")),
)
MEANING = (
    "The ratio says how many times as often an error happens in the worst population as in the best: 1 is even, and – "
    "means that it never happens in the best. The Gini coefficient says how unevenly an error is spread over all of "
    "them: 0 if every population has the same rate, 1 if one population has all errors."
)
MISSING = "–"


def models_of(run: Run) -> list[tuple[str, Populations]]:
    """The given weights, then the shared model of each stage, as far as they have been evaluated."""
    first = run.records[run.stages[0].name] if run.stages else Record()
    found = [("the given weights", first.given_populations)]
    found += [(stage.label, run.records[stage.name].populations) for stage in run.stages if run.has_shared_model(stage)]
    return [(label, populations) for label, populations in found if populations]


def populations_section(run: Run) -> Section:
    """All of it, for a page; nothing of people of one population."""
    models = models_of(run)
    rates = dict.fromkeys(
        name.partition("@")[2]
        for _, found in models
        for figures in found.groups.values()
        for name in figures
        if name.startswith("fnmr@")
    )
    usual = nearest([f"fnmr@{rate}" for rate in rates])
    if usual is None:
        return Section("populations", "Populations")
    shown = usual.partition("@")[2]
    folded = [(f"Errors at FAR {percent(float(rate))}", _errors(models, rate)) for rate in rates if rate != shown]
    tables = [_errors(models, shown), _unevenness(models, list(rates))]
    return Section("populations", "Populations", LEAD, tables=tables, folded=folded)


def plain_populations(run: Path) -> list[dict[str, Any]]:
    """All of it, for a script."""
    return [{"label": label, **dataclasses.asdict(found)} for label, found in models_of(read_run(run))]


def _errors(models: Sequence[tuple[str, Populations]], rate: str) -> Table:
    metrics = ("accuracy", *(f"{error}@{rate}" for error in ERRORS))
    rows: list[list[str]] = []
    worst: set[tuple[int, int]] = set()
    for label, found in models:
        for column, metric in enumerate(metrics, start=len(SIZED)):
            worst |= {(len(rows) + at, column) for at in _worst(found.groups, metric)}
        for name, size in found.group_sizes.items():
            counts = (size.people, size.genuine_pairs, size.impostor_pairs)
            rows.append(
                [label, name, *(f"{count:,}" for count in counts), *(_cell(found, name, each) for each in metrics)]
            )
    caption = (
        f"In percent, at the threshold at which {percent(float(rate))} of the pairs of two people are accepted, all "
        "populations together. Nobody is compared with somebody of another population. In each column, the worst "
        "population of a model is in bold. Brackets are 95% intervals over its people."
    )
    return Table([*SIZED, *(heading(metric)[1] for metric in metrics)], rows, caption, texts=2, worst=frozenset(worst))


def _worst(groups: Mapping[str, Mapping[str, float]], metric: str) -> Set[int]:
    """The places of the groups that are served worst; none where all are served alike."""
    values = [figures.get(metric) for figures in groups.values()]
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return set()
    bad = min(known) if metric == "accuracy" else max(known)
    return {at for at, value in enumerate(values) if value == bad}


def _cell(found: Populations, population: str, metric: str) -> str:
    value, interval = found.groups[population].get(metric), found.intervals.get(f"{population}/{metric}")
    if value is None:
        return MISSING
    bounds = f" [{100 * interval.low:.2f}, {100 * interval.high:.2f}]" if interval else ""
    return figure_cell(metric, value) + bounds


def _unevenness(models: Sequence[tuple[str, Populations]], rates: Sequence[str]) -> Table:
    rows = []
    for label, found in models:
        for rate in rates:
            figures = (
                _uneven(found.metrics, f"{error}_{kind}@{rate}") for error in ERRORS for kind in ("ratio", "gini")
            )
            rows.append([label, f"FAR {percent(float(rate))}", *figures])
    return Table(UNEVEN, rows, MEANING, texts=2)


def _uneven(metrics: Mapping[str, float], name: str) -> str:
    if name not in metrics:
        return MISSING
    return f"{metrics[name]:.3f}" if "_gini" in name else figure_cell(name, metrics[name])
