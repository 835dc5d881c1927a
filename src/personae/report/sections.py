"""The sections of a report, each from the run to a piece of HTML (empty where there is nothing to say)."""

import json
from collections import Counter
from collections.abc import Sequence

from personae.report.figures import over_rounds
from personae.report.markup import Markup, join, section, table, tag
from personae.report.payloads import EXPLANATIONS
from personae.report.plots import Key, Line
from personae.report.records import Record, Run, Stage
from personae.report.table import CLIENTS, DEVIATION, Row, among_everybody, cell, columns_of, heading, rows_of
from personae.report.warnings import warnings_of
from personae.report.wording import size

WAYS = {"up": "to the server", "down": "to the clients"}
MOST_ABSENCES = 100


def notices(run: Run) -> Markup:
    found = []
    if run.missing:
        found.append(tag("p", f"Not there (yet): {', '.join(run.missing)}.", class_="notice"))
    for stage in run.unfinished:
        done, of = run.records[stage.name].last_round, "" if stage.rounds is None else f" of {stage.rounds}"
        text = f"{stage.label}: in progress, round {done}{of}; what follows is provisional."
        found.append(tag("p", text, class_="notice"))
    found += [tag("p", line, class_="warning", role="note") for line in warnings_of(run)]
    return join(*found)


def headline(run: Run) -> Markup:
    rows = rows_of(run)
    columns = columns_of(rows)
    if not columns:
        return section("Results", "results", tag("p", "Nothing has been evaluated yet."))
    places: dict[str, list[str]] = {}
    for column in columns:
        places.setdefault(heading(column)[0], []).append(column)
    found = [
        _clients(rows, names) if place == "clients" else _one_place(place, rows, names)
        for place, names in places.items()
    ]
    return section("Results", "results", *found)


def _one_place(place: str, rows: Sequence[Row], columns: Sequence[str]) -> Markup:
    body = [
        [row.label, *(cell(row.metrics, column) for column in columns)]
        for row in rows
        if any(column in row.metrics for column in columns)
    ]
    caption = f"{place}: final models, in percent."
    if any(column + DEVIATION in row.metrics for row in rows for column in columns):
        caption += " Mean ± standard deviation over the folds, where there are any."
    return table([place, *(heading(column)[1] for column in columns)], body, caption)


def _clients(rows: Sequence[Row], columns: Sequence[str]) -> Markup:
    """A line for the global model and one for the personal ones, so that they stand below each other."""
    metrics = list(dict.fromkeys(column.removeprefix(CLIENTS).partition("/")[2] for column in columns))
    body = [
        [f"{row.label}, {model}", *(cell(row.metrics, f"{CLIENTS}{model}/{metric}") for metric in metrics)]
        for row in rows
        for model in ("global", "personal")
        if any(f"{CLIENTS}{model}/{metric}" in row.metrics for metric in metrics)
    ]
    caption = (
        "clients: final models, in percent. Mean ± standard deviation over the clients, each on its own test images."
    )
    if any(among_everybody(metric) for metric in metrics):
        caption += " 1:1 and 1:N are among the test images of everybody."
    return table(["clients", *(heading(metric)[1] for metric in metrics)], body, caption)


def disclosure(run: Run) -> Markup:
    found: list[str] = []
    for stage in run.stages:
        if stage.pools_faces:
            text = " pooled the faces of all clients in one place. It is a bound to compare with, not a private method."
            found.append(tag("p", tag("strong", stage.label), text, class_="alarm", role="note"))
        if "ClassEmbeddings" in _left(run, stage):
            text = (
                ": vectors that stand for single persons (ClassEmbeddings) left the clients. Whoever holds them can"
                " recognise these persons in other images."
            )
            found.append(tag("p", tag("strong", stage.label), text, class_="warning", role="note"))
        if stage.discloses is not None and (undeclared := set(_left(run, stage)) - set(stage.discloses)):
            text = f" sent what it had not declared: {', '.join(sorted(undeclared))}."
            found.append(tag("p", tag("strong", stage.label), text, class_="alarm", role="note"))
    rows = [
        [stage.label, payload, EXPLANATIONS.get(payload, ""), size(run.records[stage.name].payloads["up", payload])]
        for stage in run.stages
        for payload in _left(run, stage)
    ]
    rows += [
        [stage.label, "faces", "the images themselves, in one place", "–"] for stage in run.stages if stage.pools_faces
    ]
    if rows:
        caption = "Everything that the stages may send to the server, and how much of it they sent."
        found.append(table(["stage", "payload", "what it is", "sent"], rows, caption, texts=3))
    elif run.stages and all(stage.discloses is not None for stage in run.stages):
        found.append(tag("p", "Nothing left the clients."))
    else:
        found.append(tag("p", "Not known yet: no summary says it, and no transfer has been recorded."))
    return section("What left the clients", "disclosure", *found)


def _left(run: Run, stage: Stage) -> list[str]:
    """Declared payloads, then any others that the ledger saw going up."""
    sent = (payload for direction, payload in run.records[stage.name].payloads if direction == "up")
    return list(dict.fromkeys((*(stage.discloses or ()), *sorted(sent))))


def course(run: Run) -> Markup:
    """How the stages went: rounds, time and traffic."""
    rows = []
    for stage in run.stages:
        record = run.records[stage.name]
        seconds = f"{sum(record.seconds.values()):,.1f} s" if record.seconds else "–"
        traffic = [size(sum(record.traffic[direction].values())) for direction in ("up", "down")]
        rows.append([stage.label, stage.algorithm, str(record.last_round), seconds, *traffic])
    if not rows:
        return Markup()
    head = ["stage", "algorithm", "rounds", "time", *WAYS.values()]
    return section("Stages", "stages", table(head, rows, "The stages of the run.", texts=2))


def ledger(run: Run) -> Markup:
    rows = [
        [stage.label, payload, WAYS[direction], f"{record.messages[direction, payload]:,}", size(total), f"{total:,}"]
        for stage in run.stages
        for record in [run.records[stage.name]]
        for (direction, payload), total in sorted(record.payloads.items(), reverse=True)
    ]
    if not rows:
        return section("Ledger", "ledger", tag("p", "No transfer has been recorded."))
    head = ["stage", "payload", "direction", "messages", "size", "bytes"]
    by_payload = table(head, rows, "Every transfer, by payload and direction.", texts=3)
    by_round = [
        [stage.label, str(number), *(f"{record.traffic[direction][number]:,}" for direction in ("up", "down"))]
        for stage in run.stages
        for record in [run.records[stage.name]]
        for number in sorted(set(record.traffic["up"]) | set(record.traffic["down"]))
    ]
    caption = "Bytes by round."
    rounds = table(["stage", "round", *WAYS.values()], by_round, caption)
    plots = [
        over_rounds(f"traffic-{at}", f"{stage.label}: traffic by round", "MB", _megabytes(record), from_zero=True)
        for at, stage in enumerate(run.stages)
        for record in [run.records[stage.name]]
        if record.payloads
    ]
    folded = tag("details", tag("summary", "Totals of every round"), rounds)
    return section("Ledger", "ledger", by_payload, tag("div", *plots, class_="figures"), folded)


def _megabytes(record: Record) -> list[Line]:
    ways = ((Key(WAYS["up"], 0), record.traffic["up"]), (Key(WAYS["down"], 1, 1), record.traffic["down"]))
    return [Line(key, sorted(bytes_), [bytes_[number] / 1e6 for number in sorted(bytes_)]) for key, bytes_ in ways]


def absences(run: Run) -> Markup:
    found: Counter[tuple[str, str, str, str]] = Counter()
    for stage in run.stages:
        for (what, client, reason), times in run.records[stage.name].absences.items():
            found[stage.label, client, what, reason] += times
    if not found:
        return section("Rejected and failed clients", "absences", tag("p", "None."))
    rows = [[*key, f"{times:,}"] for key, times in found.most_common(MOST_ABSENCES)]
    rest = len(found) - len(rows)
    caption = "How often a client's update was rejected, or failed to arrive, and why."
    if rest > 0:
        caption += f" {rest:,} rarer entries are left out; metrics.jsonl has them all."
    return section(
        "Rejected and failed clients",
        "absences",
        table(["stage", "client", "what", "reason", "rounds"], rows, caption, texts=4),
    )


def setting(run: Run) -> Markup:
    environment = table(
        ["what", "value"], [[key, str(value)] for key, value in run.environment.items()], "Environment.", texts=2
    )
    config = tag(
        "details",
        tag("summary", "config.json"),
        tag("pre", json.dumps(run.config, indent=2, ensure_ascii=False)),
        open=True,
    )
    return section("Configuration and environment", "setting", environment if run.environment else "", config)
