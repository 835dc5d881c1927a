"""The sections of a report that show figures, each with its legend and a summary for those who cannot see it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from personae.report.fairness import fairness_table
from personae.report.markup import Markup, join, section, tag
from personae.report.plots import (
    GENUINE,
    IMPOSTOR,
    Key,
    Line,
    client_bars,
    client_distribution,
    curves,
    roc_curves,
    score_histogram,
)
from personae.report.records import Run
from personae.report.table import DEVIATION, among_everybody, heading
from personae.words import counted

MOST_BARS = 60
SWATCHES = ("none", "7 4", "7 3 2 3", "2 3")
GLOBAL, PERSONAL = Key("global model", 0), Key("personal model", 2)


def figure(title: str, svg: Markup, keys: Sequence[Key], summary: str, *, wide: bool = False) -> Markup:
    image = tag("div", svg, class_="scroll", role="img", aria_label=f"{title}. {summary}", tabindex="0")
    legend = tag("ul", *(tag("li", _swatch(key), key.label) for key in keys), class_="legend")
    return tag("figure", tag("figcaption", title), image, legend, class_="wide" if wide else "")


def over_rounds(
    name: str, title: str, ylabel: str, lines: Sequence[Line], *, percent: bool = False, from_zero: bool = False
) -> Markup:
    ends = (f"{line.key.label} ends at {_value(line.y[-1], percent)}" for line in lines if line.y)
    svg = curves(name, lines, ylabel, percent=percent, from_zero=from_zero)
    return figure(title, svg, [line.key for line in lines], f"{'; '.join(ends)}.")


def progress(run: Run) -> Markup:
    """Loss and benchmarks over the rounds of each stage, and the clients' mean and spread."""
    found = []
    losses = [
        _line(Key(stage.label, at, at), run.records[stage.name].loss)
        for at, stage in enumerate(run.stages)
        if run.records[stage.name].loss
    ]
    if losses:
        found.append(over_rounds("loss", "Training loss", "loss", losses))
    names = dict.fromkeys(
        name for record in run.records.values() for metrics in record.benchmarks.values() for name in metrics
    )
    for number, name in enumerate(name for name in names if not name.endswith(DEVIATION)):
        lines = []
        for at, stage in enumerate(run.stages):
            known = {key: all_[name] for key, all_ in run.records[stage.name].benchmarks.items() if name in all_}
            if known:
                lines.append(_line(Key(stage.label, at, at), known))
        where, what = heading(name)
        found.append(over_rounds(f"metric-{number}", f"{where}: {what}", what, lines, percent=True))
    found += _clients_over_rounds(run)
    return section("Over the rounds", "progress", _figures(found))


def _clients_over_rounds(run: Run) -> Iterator[Markup]:
    kinds = {"global": 1, "personal": 0}
    names = _client_metrics(spreads for record in run.records.values() for spreads in record.clients.values())
    for number, name in enumerate(names):
        lines = []
        for at, stage in enumerate(run.stages):
            for kind, dash in kinds.items():
                known = {
                    key: all_[f"{kind}/{name}"]
                    for key, all_ in run.records[stage.name].clients.items()
                    if f"{kind}/{name}" in all_
                }
                if known:
                    means = {key: one.mean for key, one in known.items()}
                    deviations = {key: one.deviation for key, one in known.items()}
                    lines.append(_line(Key(f"{stage.label}, {kind} model", at, dash), means, deviations))
        what = heading(name)[1]
        place = "everybody's test images" if among_everybody(name) else "clients' own test images"
        title = f"{place}: {what}, mean ± deviation over clients"
        yield over_rounds(f"clients-{number}", title, what, lines, percent=True)


def operating_points(run: Run) -> Markup:
    found = []
    for number, benchmark in enumerate(_benchmarks(run)):
        lines = []
        for at, stage in enumerate(run.stages):
            result = (run.records[stage.name].evaluation or {}).get(benchmark)
            if result and result["roc"]["far"]:
                lines.append(Line(Key(stage.label, at, at), result["roc"]["far"], result["roc"]["tar"]))
        ends = (f"{line.key.label}: {line.y[0]:.1%} at {line.x[0]:.1e}" for line in lines)
        summary = f"True accept rate at the lowest false accept rate: {'; '.join(ends)}."
        svg = roc_curves(f"roc-{number}", lines)
        found.append(figure(f"{benchmark}: ROC over all pairs", svg, [line.key for line in lines], summary))
    return section("Operating points", "roc", _figures(found))


def score_distributions(run: Run) -> Markup:
    found = []
    for number, benchmark in enumerate(_benchmarks(run)):
        for at, stage in enumerate(run.stages):
            result = (run.records[stage.name].evaluation or {}).get(benchmark)
            if result:
                bins = result["histogram"]
                svg = score_histogram(f"scores-{number}-{at}", bins["edges"], bins["genuine"], bins["impostor"])
                summary = f"{counted(sum(bins['genuine']), 'pair')} of one person, {sum(bins['impostor']):,} of two."
                found.append(figure(f"{benchmark}: scores of {stage.label}", svg, [GENUINE, IMPOSTOR], summary))
    return section("Scores", "scores", _figures(found))


def per_client(run: Run) -> Markup:
    found = []
    for at, stage in enumerate(run.stages):
        clients = run.records[stage.name].last_clients
        for number, name in enumerate(_client_metrics(clients.values())):
            keys = {GLOBAL: f"global/{name}", PERSONAL: f"personal/{name}"}
            having = sorted(
                client for client, metrics in clients.items() if any(key in metrics for key in keys.values())
            )
            values = {
                key: [clients[client].get(metric, math.nan) for client in having]
                for key, metric in keys.items()
                if any(metric in clients[client] for client in having)
            }
            identity = f"bars-{at}-{number}"
            if len(having) <= MOST_BARS:
                new = run.records[stage.name].new_clients
                names = [f"{client} (new)" if client in new else client for client in having]
                svg = client_bars(identity, names, values, _gains(values))
            else:
                known = {key: [value for value in all_ if math.isfinite(value)] for key, all_ in values.items()}
                svg = client_distribution(identity, known)
            title = f"{stage.label}: {heading(name)[1]} of {counted(len(having), 'client')}"
            found.append(figure(title, svg, list(values), _range(values), wide=True))
    return section("Clients", "clients", _figures(found), fairness_table(run))


def _gains(values: Mapping[Key, Sequence[float]]) -> list[str]:
    """By client, how much better its own model is, as a share; nothing where it has none or nothing to gain on."""
    if GLOBAL not in values or values[GLOBAL] == values.get(PERSONAL, values[GLOBAL]):
        return []
    pairs = zip(values[GLOBAL], values[PERSONAL], strict=True)
    return [f"{after / before - 1:+.0%}" if before > 0 and math.isfinite(after) else "" for before, after in pairs]


def _range(values: Mapping[Key, Sequence[float]]) -> str:
    known = {key: [value for value in all_ if math.isfinite(value)] for key, all_ in values.items()}
    ranges = (f"{key.label}: {min(all_):.1%} to {max(all_):.1%}" for key, all_ in known.items() if all_)
    return f"{'; '.join(ranges)}."


def _benchmarks(run: Run) -> list[str]:
    return list(dict.fromkeys(name for record in run.records.values() for name in record.evaluation or {}))


def _client_metrics(all_: Iterable[Mapping[str, object]]) -> list[str]:
    """Names without the model they are of: `rank1` for `global/rank1` and `personal/rank1`."""
    return list(dict.fromkeys(name.partition("/")[2] for metrics in all_ for name in metrics))


def _line(key: Key, values: Mapping[int, float], bands: Mapping[int, float] | None = None) -> Line:
    rounds = sorted(values)
    return Line(key, rounds, [values[at] for at in rounds], None if bands is None else [bands[at] for at in rounds])


def _figures(found: Sequence[Markup]) -> Markup:
    return tag("div", *found, class_="figures") if found else Markup()


def _value(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else f"{value:.4g}"


def _swatch(key: Key) -> Markup:
    style = f"stroke: {key.variable}; stroke-dasharray: {SWATCHES[key.dash % len(SWATCHES)]}"
    line = tag("line", x1="0", y1="5", x2="28", y2="5", style=style)
    return join(tag("svg", line, viewBox="0 0 28 10", class_="swatch", aria_hidden="true"))
