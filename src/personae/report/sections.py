"""The sections of a report that are tables, each from the run."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from personae.report.content import Note, Section, Table
from personae.report.first_screen import left
from personae.report.measured import Measured, difference
from personae.report.records import Run
from personae.report.table import CLIENTS, DEVIATION, Row, among_everybody, cell, columns_of, heading, own_rows_of
from personae.report.verdict import Role, Verdict
from personae.report.warnings import warnings_of
from personae.report.wording import duration, size
from personae.words import counted

WAYS = {"up": "to the server", "down": "to the clients"}
MOST_ABSENCES = 100
MOST_ROUNDS = 500  # of suspicion that are shown
OF_SYNTHETIC = frozenset({"images", "domain", "people", "capture", "seed"})  # keys of a source
TOLD = 0.05  # a score that one decimal shows as zero says nothing


def notices(run: Run) -> list[Note]:
    found = []
    if run.missing:
        found.append(Note(f"Missing, or not written yet: {', '.join(run.missing)}."))
    for stage in run.unfinished:
        done, of = run.records[stage.name].last_round, "" if stage.rounds is None else f" of {stage.rounds}"
        found.append(Note(f"{stage.label}: in progress, round {done}{of}; what follows is provisional."))
    return [*found, *(Note(line, "warning") for line in warnings_of(run))]


def results(run: Run, found: Verdict) -> Section:
    """Every metric of the final models, place by place, with differences to the baseline where they are paired."""
    rows = own_rows_of(run)
    pooled = {model.label for model in found.models if model.role is Role.POOLED}
    places: dict[str, list[str]] = {}
    for column in columns_of(rows):
        places.setdefault(heading(column)[0], []).append(column)
    of_clients = places.pop("clients", [])
    tables = [_one_place(place, rows, names, pooled) for place, names in places.items()]
    tables += [*_clients(rows, of_clients, pooled), *_differences(run, found)]
    lead = "Every figure of the final models, and differences with their intervals."
    return Section("results", "Results by benchmark", lead, tables=tables)


def _one_place(place: str, rows: Sequence[Row], columns: Sequence[str], pooled: Set[str]) -> Table:
    chosen = [row for row in rows if any(column in row.metrics for column in columns)]
    caption = f"{place}: final models, in percent."
    if any(column + DEVIATION in row.metrics for row in rows for column in columns):
        caption += " Mean ± standard deviation over the folds, where there are any."
    body = [[row.label, *(cell(row.metrics, column) for column in columns)] for row in chosen]
    best = _best([[None if row.label in pooled else row.metrics.get(column) for column in columns] for row in chosen])
    return Table([place, *(heading(column)[1] for column in columns)], body, caption, best=best)


def _best(values: Sequence[Sequence[float | None]]) -> frozenset[tuple[int, int]]:
    """The cells with the highest value of their column, the first column being names; None does not compete."""
    found = set()
    for column, of in enumerate(zip(*values, strict=True), start=1):
        known = [value for value in of if value is not None]
        found |= {(row, column) for row, value in enumerate(of) if len(known) > 1 and value == max(known)}
    return frozenset(found)


def _clients(rows: Sequence[Row], columns: Sequence[str], pooled: Set[str]) -> list[Table]:
    """One table for the clients' own test images, and one for each benchmark that personal models were tried on."""
    places: dict[str, list[str]] = {}
    for metric in dict.fromkeys(column.removeprefix(CLIENTS).partition("/")[2] for column in columns):
        places.setdefault(heading(metric)[0], []).append(metric)
    return [_over_clients(place, rows, metrics, pooled) for place, metrics in places.items()]


def _over_clients(place: str, rows: Sequence[Row], metrics: Sequence[str], pooled: Set[str]) -> Table:
    """A line for the global model and one for the personal ones, so that they stand below each other."""
    lines = [
        (row, kind, [f"{CLIENTS}{kind}/{metric}" for metric in metrics])
        for row in rows
        for kind in _kinds(row)
        if any(f"{CLIENTS}{kind}/{metric}" in row.metrics for metric in metrics)
    ]
    body = [
        [row.label if len(_kinds(row)) == 1 else f"{row.label}, {kind}", *(cell(row.metrics, name) for name in names)]
        for row, kind, names in lines
    ]
    tested = f"the clients' models on {place}" if place else "the clients, each on its own test images"
    caption = f"Final models, in percent. Mean ± standard deviation over {tested}."
    if any(among_everybody(metric) for metric in metrics):
        caption += " 1:1 and 1:N compare with the test images of everybody."
    competing = [
        [None if row.label in pooled and kind == "global" else row.metrics.get(name) for name in names]
        for row, kind, names in lines
    ]
    title = f"clients, {place}" if place else "clients, own people"
    return Table([title, *(heading(metric)[1] for metric in metrics)], body, caption, best=_best(competing))


def _kinds(row: Row) -> list[str]:
    """Which models the clients have: the shared one, one of their own, or both."""
    return [
        kind for kind in ("global", "personal") if any(name.startswith(f"{CLIENTS}{kind}/") for name in row.metrics)
    ]


def _differences(run: Run, found: Verdict) -> list[Table]:
    """To the baseline, on each benchmark whose rates have been resampled."""
    if found.baseline is None or found.baseline.personal or found.baseline.stage.name not in run.records:
        return []
    base = run.records[found.baseline.stage.name].evaluation or {}
    tables = []
    for place, known in base.items():
        metrics = list(known.get("resampled", {}))
        rows = []
        for stage in run.stages:
            result = (run.records[stage.name].evaluation or {}).get(place, {})
            if stage.name != found.baseline.stage.name and result.get("resampled", {}).keys() >= set(metrics):
                rows.append([stage.label, *(_gain(result, known, metric) for metric in metrics)])
        if metrics and rows:
            caption = (
                f"{place}: differences to {found.baseline.label} in percentage points, with 95% intervals over the "
                "people tested. Where an interval contains zero, the difference is noise."
            )
            tables.append(Table([f"{place}, difference", *(heading(metric)[1] for metric in metrics)], rows, caption))
    return tables


def _gain(result: dict[str, dict[str, list[float]]], base: dict[str, dict[str, list[float]]], metric: str) -> str:
    one, other = (Measured(each["metrics"][metric], tuple(each["resampled"][metric])) for each in (result, base))  # type: ignore[arg-type]
    return difference(one, other).text


def traffic(run: Run) -> Section:
    notes = []
    declared = [
        [stage.label, payload, run.described(payload).meaning, size(run.records[stage.name].payloads["up", payload])]
        for stage in run.stages
        for payload in left(run, stage)
    ]
    declared += [
        [stage.label, "faces", "the images themselves, in one place", "–"] for stage in run.stages if stage.pools_faces
    ]
    tables = []
    if declared:
        caption = "Everything that the stages may send to the server, and how much of it they sent."
        tables.append(Table(["stage", "payload", "what it is", "sent"], declared, caption, texts=3))
    elif run.stages and all(stage.discloses is not None for stage in run.stages):
        notes.append(Note("Nothing left the clients."))
    else:
        notes.append(Note("Not known yet: no summary says it, and no transfer has been recorded."))
    rows = [
        [stage.label, payload, WAYS[direction], f"{record.messages[direction, payload]:,}", size(total), f"{total:,}"]
        for stage in run.stages
        for record in [run.records[stage.name]]
        for (direction, payload), total in sorted(record.payloads.items(), reverse=True)
    ]
    by_round = [
        [stage.label, str(number), *(f"{record.traffic[direction][number]:,}" for direction in ("up", "down"))]
        for stage in run.stages
        for record in [run.records[stage.name]]
        for number in sorted(set(record.traffic["up"]) | set(record.traffic["down"]))
    ]
    folded = []
    if rows:
        head = ["stage", "payload", "direction", "messages", "size", "bytes"]
        tables.append(Table(head, rows, "Every transfer, by payload and direction.", texts=3))
        folded = [("Totals of every round", Table(["stage", "round", *WAYS.values()], by_round, "Bytes by round."))]
    lead = "What was sent, in which direction, and how much."
    return Section("traffic", "Traffic", lead, notes=notes, tables=tables, folded=folded)


def timing(run: Run) -> Section:
    """How the stages went, and who was absent."""
    rows = []
    for stage in run.stages:
        seconds = run.records[stage.name].seconds
        total, each = sum(seconds.values()), sum(seconds.values()) / max(1, len(seconds))
        times = [duration(total), duration(each)] if seconds else ["–", "–"]
        rows.append([stage.label, stage.algorithm, str(run.records[stage.name].last_round), *times])
    head = ["stage", "algorithm", "rounds", "time", "per round"]
    tables = [Table(head, rows, "Training, without the time that tests took.", texts=2)] if rows else []
    absent = _absences(run)
    tables += [absent] if absent else []
    notes = [] if absent or not rows else [Note("No update was rejected, and no client failed.")]
    return Section("timing", "Timing", "Rounds, time, and clients that failed.", notes=notes, tables=tables)


def defence(run: Run) -> Section:
    """Whom the server suspected, what it did about their updates, and what would have been without that."""
    suspects, rounds = _suspects(run), _suspicion_by_round(run)
    federated = any(stage.federated for stage in run.stages)
    notes = [Note("No update was left out for suspicion or made smaller.")] if federated and not suspects else []
    tables = [suspects] if suspects else []
    folded = [("Suspicion in every round", rounds)] if rounds else []
    lead = "Clients that the server suspected, and what it did about their updates."
    return Section("defence", "Defence", lead, notes=notes, tables=tables, folded=folded)


def _absences(run: Run) -> Table | None:
    found: Counter[tuple[str, str, str, str]] = Counter()
    for stage in run.stages:
        for (what, client, reason), times in run.records[stage.name].absences.items():
            found[stage.label, client, what, reason] += times
    if not found:
        return None
    rows = [[*key, f"{times:,}"] for key, times in found.most_common(MOST_ABSENCES)]
    rest = len(found) - len(rows)
    caption = "How often a client's update was rejected, or failed to arrive, and why."
    if rest > 0:
        caption += f" {rest:,} rarer entries are left out; metrics.jsonl has them all."
    return Table(["stage", "client", "what", "reason", "rounds"], rows, caption, texts=4)


def _suspects(run: Run) -> Table | None:
    """What the server did about whom without losing it: by client, in how many rounds."""
    rows = []
    for stage in run.stages:
        found = run.records[stage.name].suspicions
        for client in sorted({name for each in found.values() for name in (*each.left_out, *each.drawn_back)}):
            left_out = [round_ for round_, each in found.items() if client in each.left_out]
            factors = [min(each.drawn_back[client].values()) for each in found.values() if client in each.drawn_back]
            last = found[left_out[-1]].left_out[client] if left_out else "–"
            highest = max(each.scores.get(client, 0.0) for each in found.values())
            smallest = f"{min(factors):.2g}" if factors else "–"
            rows.append([stage.label, client, last, f"{highest:.1f}", str(len(left_out)), str(len(factors)), smallest])
    if not rows:
        return None
    head = ["stage", "client", "suspected because", "highest score", "rounds left out", "rounds drawn back", "to"]
    caption = (
        "Updates that the server left out, or drew back to this part of themselves (docs/concepts/security.md). A "
        "client whose score is above the bound (firewall.suspicion) is left out until its score falls again. "
        "`personae exclude` excludes a client for good, and `personae include` lets it in again."
    )
    return Table(head, rows[:MOST_ABSENCES], caption, texts=3)


def _suspicion_by_round(run: Run) -> Table | None:
    """Scores, what was done about them, and what the model would have been without that."""
    rows = []
    for stage in run.stages:
        for round_, each in sorted(run.records[stage.name].suspicions.items()):
            told = {client: score for client, score in each.scores.items() if score >= TOLD}
            if not (told or each.left_out or each.drawn_back):
                continue
            scores = sorted(told.items(), key=lambda item: -item[1])
            figures = [
                f"{found[name]:.3g}" if name in found else "–"
                for name in ("step", "separation")
                for found in (each.merged, each.otherwise)
            ]
            rows.append(
                [
                    stage.label,
                    str(round_),
                    ", ".join(f"{client} {score:.1f}" for client, score in scores) or "–",
                    ", ".join(each.left_out) or "–",
                    ", ".join(each.drawn_back) or "–",
                    *figures,
                ]
            )
    if not rows:
        return None
    head = ["stage", "round", "scores", "left out", "drawn back", "step", "otherwise", "separation", "otherwise"]
    caption = (
        "The step is how far the weights of the merged model went. Separation is the chance that it finds two rendered "
        "images of one person more alike than two of two people. 'Otherwise' is of the model that would have been "
        "merged had nobody been left out or drawn back; there is none where that is the same model."
    )
    return Table(head, rows[:MOST_ROUNDS], caption, texts=5)


def faces(run: Run) -> Section:
    """Where the faces come from; the report itself shows none."""
    given = run.config.get("data")
    sources = {name: each for name, each in given.items() if isinstance(each, dict)} if isinstance(given, dict) else {}
    said = {name: _said_of(each) for name, each in sources.items()}
    keys = list(dict.fromkeys(key for each in said.values() for key in each))
    rows = [[name, *(_plain(each.get(key)) for key in keys)] for name, each in said.items()]
    clients = {client for record in run.records.values() for client in record.last_clients}
    notes = (
        [Note(f"The private faces are divided among {counted(len(clients), 'client')}.")] if clients and rows else []
    )
    tables = [Table(["faces", *keys], rows, "As the experiment names them.", texts=1 + len(keys))] if rows else []
    return Section("faces", "Faces", "Whose photographs were used, and from where.", notes=notes, tables=tables)


def _said_of(source: Mapping[str, Any]) -> dict[str, Any]:
    """What an experiment says of its faces; of photographs nothing that is for synthetic ones."""
    other = () if source.get("source") == "synthetic" else OF_SYNTHETIC
    return {key: value for key, value in source.items() if value not in (None, False) and key not in other}


def _plain(value: object) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def setting(run: Run) -> Section:
    rows = [[key, str(value)] for key, value in run.environment.items()]
    tables = [Table(["what", "value"], rows, "Environment.", texts=2)] if rows else []
    code = json.dumps(run.config, indent=2, ensure_ascii=False)
    lead = "All settings, and the machine."
    return Section("setting", "Configuration", lead, tables=tables, code=code)
