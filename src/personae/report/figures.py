"""The sections of a report that show figures, each with a summary for those who cannot see them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from personae.report.content import Figure, Note, Section
from personae.report.plots import (
    GENUINE,
    IMPOSTOR,
    Key,
    Line,
    client_bars,
    client_distribution,
    curves,
    histogram_limits,
    roc_curves,
    score_histogram,
)
from personae.report.records import Record, Run, StageRecord
from personae.report.table import DEVIATION, among_everybody, heading
from personae.report.wording import unit_of
from personae.words import counted

MOST_BARS = 120
PERSONAL = 1  # the dash of personal models


@dataclass(frozen=True)
class Cost:
    """What training takes of the clients, in each round."""

    title: str
    axis: str
    by_round: Callable[[Record], Counter[int]]


VISITS = Cost("client visits", "client visits (one client in one round)", lambda record: record.visits)
BYTES = Cost("bytes", "{unit} to and from clients", lambda record: record.traffic["up"] + record.traffic["down"])


def key_of(run: Run, stage: str, *, personal: bool = False) -> Key:
    """The same colour for a stage in every figure; personal models are dashed or hatched."""
    place = [each.name for each in run.stages].index(stage)
    label = run.stages[place].label
    beside_another = personal and run.has_shared_model(run.stages[place])
    return Key(f"{label}, personal" if beside_another else label, place, PERSONAL if personal else 0)


def legend(run: Run) -> list[Key]:
    """One for all figures: a key for each model that there is."""
    return [key_of(run, stage.name, personal=kind == "personal") for stage in run.stages for kind in _kinds(run, stage)]


def progress(run: Run) -> Section:
    """Loss and benchmarks over the rounds of each stage, and the clients' mean and spread."""
    found = []
    losses = [
        _line(key_of(run, stage.name), run.records[stage.name].loss)
        for stage in run.stages
        if run.records[stage.name].loss
    ]
    if _is_curve(losses):
        found.append(_over("Training loss", "loss", losses))
    places = benchmarks_over(run, _sharing(run)) | _clients_over_rounds(run)
    for metric in dict.fromkeys(metric for _, metric in places):
        drawn = {place: lines for (place, of), lines in places.items() if of == metric and _is_curve(lines)}
        limits = _shared([line for lines in drawn.values() for line in lines])
        for place, lines in drawn.items():
            found.append(_over(f"{place}: {metric}", metric, lines, limits, metric=chosen(metric)))
    return Section("curves", "Curves", "Loss and figures over the rounds.", figures=found)


def costs(run: Run) -> Section:
    """Benchmarks over the clients' work and over bytes, where several models took some of both."""
    found: list[Figure] = []
    federated = [stage for stage in _sharing(run) if run.records[stage.name].visits.total()]
    pooled = benchmarks_over(run, [stage for stage in run.stages if stage.pools_faces])
    for cost in (VISITS, BYTES) if len(federated) > 1 else ():
        places = benchmarks_over(run, federated, cost)
        end = max((line.x[-1] for lines in places.values() for line in lines), default=0)
        unit, size = unit_of(int(end)) if cost is BYTES else ("", 1)
        for (place, metric), lines in places.items():
            if not _is_curve(lines):
                continue
            level = [replace(line, x=[0, end], y=[line.y[-1]] * 2) for line in pooled.get((place, metric), [])]
            drawn = [replace(line, x=[at / size for at in line.x]) for line in (*lines, *level)]
            title, xlabel = f"{place}: {metric} over {cost.title}", cost.axis.format(unit=unit)
            shown = _over(title, metric, drawn, _shared(drawn), metric=chosen(metric), xlabel=xlabel, whole=size == 1)
            found.append(shown)
    notes = [Note("A level line is where pooled training ended.")] if found and any(pooled.values()) else []
    lead = "How good a model is after how much work of the clients, and after how many bytes."
    return Section("costs", "Costs", lead, notes=notes, figures=found)


def benchmarks_over(
    run: Run, stages: Sequence[StageRecord], cost: Cost | None = None
) -> dict[tuple[str, str], list[Line]]:
    """By place and metric, over what was spent of something, or else over the rounds of each stage."""
    names = dict.fromkeys(
        name for record in run.records.values() for metrics in record.benchmarks.values() for name in metrics
    )
    found = {}
    for name in (name for name in names if not name.endswith(DEVIATION)):
        lines = []
        for stage in stages:
            record = run.records[stage.name]
            known = {at: all_[name] for at, all_ in record.benchmarks.items() if name in all_}
            if known and cost:
                spent = _added_up(record, cost)
                known = {spent[at]: value for at, value in sorted(known.items())}
            if known:
                lines.append(_line(key_of(run, stage.name), known))
        found[heading(name)] = lines
    return found


def _added_up(record: Record, cost: Cost) -> list[int]:
    """What had been spent after each round, from round 0 on, with what the stages before it took."""
    before, by_round = sum(cost.by_round(each).total() for each in record.before), cost.by_round(record)
    return list(accumulate((by_round[at] for at in range(record.last_round + 1)), initial=before))[1:]


def _clients_over_rounds(run: Run) -> dict[tuple[str, str], list[Line]]:
    names = _client_metrics(spreads for record in run.records.values() for spreads in record.clients.values())
    found = {}
    for name in names:
        lines = []
        for stage in run.stages:
            for kind in _kinds(run, stage):
                known = {
                    at: all_[f"{kind}/{name}"]
                    for at, all_ in run.records[stage.name].clients.items()
                    if f"{kind}/{name}" in all_
                }
                if known:
                    key = key_of(run, stage.name, personal=kind == "personal")
                    means = {at: one.mean for at, one in known.items()}
                    lines.append(_line(key, means, {at: one.deviation for at, one in known.items()}))
        place, metric = heading(name)
        tested = place or ("among everybody's images" if among_everybody(name) else "own images")
        found[f"clients, {tested} (mean ± deviation)", metric] = lines
    return found


def operating_points(run: Run) -> Section:
    found = []
    for benchmark in _benchmarks(run):
        lines = []
        for stage in _sharing(run):
            result = (run.records[stage.name].evaluation or {}).get(benchmark)
            if result and result["roc"]["far"]:
                lines.append(Line(key_of(run, stage.name), result["roc"]["far"], result["roc"]["tar"]))
        if lines:
            found.append(Figure(f"{benchmark}: ROC over all pairs", roc_curves(lines), ends(lines)))
    return Section("roc", "ROC", "True accepts over false accepts, for every threshold.", figures=found)


def ends(lines: Sequence[Line]) -> str:
    """What a ROC begins with, in words."""
    found = (f"{line.key.label}: {line.y[0]:.1%} at {line.x[0]:.1e}" for line in lines)
    return f"True accept rate at the lowest false accept rate: {'; '.join(found)}."


def score_distributions(run: Run) -> Section:
    found = []
    for benchmark in _benchmarks(run):
        results = {
            at: (run.records[stage.name].evaluation or {})[benchmark]["histogram"]
            for at, stage in enumerate(run.stages)
            if stage in _sharing(run) and benchmark in (run.records[stage.name].evaluation or {})
        }
        limits = histogram_limits([(bins["edges"], bins["genuine"], bins["impostor"]) for bins in results.values()])
        for at, bins in results.items():
            svg = score_histogram(bins["edges"], bins["genuine"], bins["impostor"], limits)
            summary = f"{counted(sum(bins['genuine']), 'pair')} of one person, {sum(bins['impostor']):,} of two."
            found.append(Figure(f"{benchmark}: {run.stages[at].label}", svg, summary, (GENUINE, IMPOSTOR)))
    lead = "How similar photographs of one person are, and photographs of different people. Less overlap is better."
    return Section("scores", "Scores", lead, figures=found)


def per_client(run: Run) -> Section:
    """One figure for each metric, with all models that clients have."""
    found: list[Figure] = []
    stages = [stage for stage in run.stages if run.records[stage.name].last_clients]
    everybody = sorted({client for stage in stages for client in run.records[stage.name].last_clients})
    new = frozenset().union(*(run.records[stage.name].new_clients for stage in stages))
    for name in _client_metrics(all_ for stage in stages for all_ in run.records[stage.name].last_clients.values()):
        values: dict[Key, list[float]] = {}
        for stage in stages:
            clients = run.records[stage.name].last_clients
            for kind in _kinds(run, stage):
                heights = [clients.get(client, {}).get(f"{kind}/{name}", math.nan) for client in everybody]
                if any(map(math.isfinite, heights)):
                    values[key_of(run, stage.name, personal=kind == "personal")] = heights
        if not values:
            continue
        names = [f"{each} (new)" if each in new else each for each in everybody]
        if len(everybody) * len(values) <= MOST_BARS:
            svg = client_bars(f"bars-{len(found)}", names, values)
        else:
            svg = client_distribution({key: _finite(all_) for key, all_ in values.items()})
        place, metric = heading(name)
        title = f"{place or 'own people'}: {metric} of {counted(len(everybody), 'client')}"
        found.append(Figure(title, svg, _ranges(values), metric=chosen(metric), wide=True))
    return Section("clients", "Clients", "How well the models work for each client.", figures=found)


def chosen(metric: str) -> str:
    """What the switch calls a metric: rates of clients among everybody are shown with the others at that rate."""
    return metric.removeprefix("1:1 ").removeprefix("1:N ")


def _over(
    title: str,
    ylabel: str,
    lines: Sequence[Line],
    limits: tuple[float, float] | None = None,
    *,
    metric: str = "",
    xlabel: str = "round",
    whole: bool = True,
) -> Figure:
    last = (f"{line.key.label} ends at {f'{line.y[-1]:.1%}' if metric else f'{line.y[-1]:.4g}'}" for line in lines)
    svg = curves(lines, ylabel, percent=bool(metric), limits=limits, xlabel=xlabel, whole=whole)
    return Figure(title, svg, f"{'; '.join(last)}.", metric=metric)


def _is_curve(lines: Sequence[Line]) -> bool:
    """How a model began and how it ended is in the tables."""
    return any(len(line.x) > 2 for line in lines)


def _shared(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The range of percentages that all of these need."""
    values = []
    for line in lines:
        bands = line.band or [0.0] * len(line.y)
        values += [y + sign * band for y, band in zip(line.y, bands, strict=True) for sign in (-1, 1)]
    known = [min(1.0, max(0.0, value)) for value in _finite(values)]
    margin = 0.04 * (max(known) - min(known)) or 0.01 if known else 0.0
    return (max(0.0, min(known) - margin), max(known) + margin) if known else None


def _sharing(run: Run) -> list[StageRecord]:
    """Stages with a shared model of their own: the server's benchmarks of others are of a model from before."""
    return [stage for stage in run.stages if run.has_shared_model(stage)]


def _kinds(run: Run, stage: StageRecord) -> Iterator[str]:
    if run.has_shared_model(stage):
        yield "global"
    if _has_personal(run, stage.name):
        yield "personal"


def _has_personal(run: Run, stage: str) -> bool:
    """Whether some client uses another model than the shared one."""
    return any(
        name.startswith("personal/") and figures.get(name.replace("personal/", "global/", 1)) != value
        for figures in run.records[stage].last_clients.values()
        for name, value in figures.items()
    )


def _ranges(values: Mapping[Key, Sequence[float]]) -> str:
    known = {key: _finite(all_) for key, all_ in values.items()}
    return f"{'; '.join(f'{key.label}: {min(all_):.1%} to {max(all_):.1%}' for key, all_ in known.items() if all_)}."


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _benchmarks(run: Run) -> list[str]:
    """Those that some stage with a shared model of its own has figures of."""
    evaluations = (run.records[stage.name].evaluation for stage in _sharing(run))
    return list(dict.fromkeys(name for evaluation in evaluations for name in evaluation or {}))


def _client_metrics(all_: Iterable[Mapping[str, object]]) -> list[str]:
    """Names without the model they are of: `rank1` for `global/rank1` and `personal/rank1`; no deviations."""
    names = (name.partition("/")[2] for metrics in all_ for name in metrics if not name.endswith(DEVIATION))
    return list(dict.fromkeys(names))


def _line(key: Key, values: Mapping[int, float], bands: Mapping[int, float] | None = None) -> Line:
    rounds = sorted(values)
    return Line(key, rounds, [values[at] for at in rounds], None if bands is None else [bands[at] for at in rounds])
