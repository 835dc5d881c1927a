"""The page of an evaluation: the figures of a model on each benchmark, with ROC and DET curves."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from personae.evaluation.protocols import BenchmarkResult, Gaps
from personae.evaluation.suite import Evaluation
from personae.files import write_text
from personae.report.content import Figure, Section, Table
from personae.report.figures import ends
from personae.report.plots import GENUINE, IMPOSTOR, Key, Line, det_curves, roc_curves, score_histogram
from personae.report.table import DEVIATION, figure_cell
from personae.report.templates import render
from personae.words import counted


def write_evaluation(target: Path, model: str, evaluation: Evaluation) -> None:
    write_text(target, evaluation_page(model, evaluation))


def evaluation_page(model: str, evaluation: Evaluation) -> str:
    results = evaluation.results
    every = (_figures_table(evaluation), _groups(results), _curves(results), _scores(results))
    return render("evaluation", title=model, kicker="Evaluation", sections=[each for each in every if each], metrics=[])


def figure_text(result: BenchmarkResult, metric: str, *, of: Mapping[str, float] | None = None, group: str = "") -> str:
    """A metric as `figure_cell` writes it, with its deviation, and its interval where it has one."""
    metrics = result.metrics if of is None else of
    if metric not in metrics:
        return "–"
    deviation = f" ± {100 * metrics[metric + DEVIATION]:.2f}" if metric + DEVIATION in metrics else ""
    found = result.intervals.get(f"{group}/{metric}" if group else metric)
    interval = f" [{100 * found.low:.2f}, {100 * found.high:.2f}]" if found else ""
    return f"{figure_cell(metric, metrics[metric])}{deviation}{interval}"


def metric_names(metrics: Mapping[str, float]) -> list[str]:
    """Deviations are shown with their metric."""
    return [name for name in metrics if not name.endswith(DEVIATION)]


def figure_rows(evaluation: Evaluation) -> list[list[str]]:
    """One line per metric, one cell per benchmark; at the end, how many pairs the rates are of, and what is missing."""
    results = evaluation.results.values()
    names = metric_names(dict.fromkeys(evaluation.metrics, 0.0))
    rows = [[name, *(figure_text(result, name) for result in results)] for name in names]
    rows += [
        [title, *("–" if (value := getattr(each, field)) is None else f"{100 * value:.2f}" for each in results)]
        for title, field in (("equal error rate", "eer"), ("area under the curve", "auc"))
    ]
    rows += [
        [title, *(f"{getattr(result, field):,}" for result in results)]
        for title, field in (("pairs of one person", "genuine_pairs"), ("pairs of two persons", "impostor_pairs"))
    ]
    rows += [
        [gap.name.replace("_", " "), *(f"{getattr(result.gaps, gap.name):,}" for result in results)]
        for gap in fields(Gaps)
        if any(getattr(result.gaps, gap.name) for result in results)
    ]
    return rows


def _figures_table(evaluation: Evaluation) -> Section:
    caption = (
        "In percent; ± is the standard deviation over folds or splits, brackets are 95% intervals over identities."
    )
    return Section(
        "results", "Results", tables=[Table(["metric", *evaluation.results], figure_rows(evaluation), caption)]
    )


def _groups(results: Mapping[str, BenchmarkResult]) -> Section:
    found = []
    for name, result in results.items():
        if result.groups:
            metrics = metric_names(next(iter(result.groups.values())))
            rows = [
                [group, *(figure_text(result, metric, of=figures, group=group) for metric in metrics)]
                for group, figures in result.groups.items()
            ]
            caption = f"{name}: each group in percent; fmr and fnmr at the threshold that all groups together give."
            found.append(Table(["group", *metrics], rows, caption))
    return Section("groups", "Groups", tables=found)


def _curves(results: Mapping[str, BenchmarkResult]) -> Section:
    keys = {name: Key(name, at, at) for at, name in enumerate(results)}
    drawn = {keys[name]: result.roc for name, result in results.items() if result.roc is not None}
    roc = [Line(key, curve.far, curve.tar) for key, curve in drawn.items()]
    det = [Line(key, *zip(*curve.det, strict=True)) for key, curve in drawn.items()]
    figures = [
        Figure("ROC", roc_curves(roc), ends(roc), list(drawn)),
        Figure("DET", det_curves(det), ends(roc), list(drawn)),
    ]
    return Section("curves", "Operating points", figures=figures if drawn else [])


def _scores(results: Mapping[str, BenchmarkResult]) -> Section:
    found = []
    for name, result in results.items():
        if (bins := result.histogram) is not None:
            svg = score_histogram(bins.edges, bins.genuine, bins.impostor)
            summary = f"{counted(sum(bins.genuine), 'pair')} of one person, {sum(bins.impostor):,} of two."
            found.append(Figure(f"{name}: scores", svg, summary, (GENUINE, IMPOSTOR)))
    return Section("scores", "Scores", figures=found)
