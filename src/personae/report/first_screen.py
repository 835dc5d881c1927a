"""What a reader sees first: the methods with their intervals, and what left the clients."""

import math
from collections.abc import Sequence

from personae.report.content import Bar, Chart, ChartRow, Note, Track
from personae.report.measured import Measured
from personae.report.records import Run, StageRecord
from personae.report.verdict import Model, Role, Verdict
from personae.report.wording import size

STEP = 0.05  # axes end at multiples of it


def chart(run: Run, found: Verdict) -> Chart | None:
    """A row for each method, in its colour of all figures. Columns share one axis, so that they can be compared."""
    if not found.rows:
        return None
    stages = [stage.name for stage in run.stages]
    low, high = _range(found.models)
    rows = []
    asked = len(found.questions)
    for model, row in zip(found.models, found.rows, strict=True):
        tracks = [
            _track(model.figures.get(question.name), low, high, best)
            for question, best in zip(found.questions, row.best[:asked], strict=True)
        ]
        rows.append(
            ChartRow(
                label=row.label,
                role="personal" if model.personal and row.role is Role.TOGETHER else row.role.value,
                series=stages.index(model.stage.name) % 6 + 1 if model.stage.name in stages else 6,
                personal=model.personal,
                tracks=tracks,
                cells=list(zip(row.cells[asked:], row.best[asked:], strict=True)),
                gain="baseline" if model is found.baseline else row.gain.text if row.gain else "–",
                noise=row.gain is not None and not row.gain.beyond_noise,
            )
        )
    compared = ""
    if found.baseline and found.decisive:
        compared = f" Differences are to {found.baseline.label}, on {found.decisive.heading}, in percentage points."
    return Chart(
        questions=[question.heading for question in found.questions],
        columns=found.headings[asked:],
        rows=rows,
        axis=(f"{100 * low:.0f}%", f"{100 * high:.0f}%"),
        baseline=found.baseline.label if found.baseline else "",
        caption=f"{found.caption} A dot is the figure, and the line through it is its 95% interval. The best figure "
        f"is bold; pooled training does not compete.{compared}",
    )


def _range(models: Sequence[Model]) -> tuple[float, float]:
    ends = []
    for model in models:
        for figure in model.figures.values():
            interval = figure.interval
            ends += [figure.value] if interval is None else [interval.low, interval.high]
    low, high = max(0.0, min(ends) - STEP / 5), min(1.0, max(ends) + STEP / 5)
    return math.floor(low / STEP) * STEP, math.ceil(high / STEP) * STEP


def _track(figure: Measured | None, low: float, high: float, best: bool) -> Track | None:
    if figure is None:
        return None

    def place(value: float) -> float:
        return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 2)

    interval = figure.interval
    low_end, high_end = (place(interval.low), place(interval.high)) if interval else (None, None)
    return Track(f"{100 * figure.value:.1f}%", place(figure.value), low_end, high_end, best)


def sent(run: Run) -> list[Bar]:
    """Everything that clients sent, by kind, the largest first."""
    total = run.sent.total()
    return [
        Bar(known.short, size(count), round(100 * count / max(1, total), 2), known.meaning or kind)
        for kind, count in run.sent.most_common()
        for known in [run.described(kind)]
    ]


def disclosures(run: Run) -> list[Note]:
    """What somebody who cares for privacy must not overlook."""
    found = []
    for stage in run.stages:
        if stage.pools_faces:
            text = " had the faces of all clients in one place. It is for comparison and keeps nothing private."
            found.append(Note(text, "alarm", stage.label))
        if templates := [payload for payload in left(run, stage) if run.described(payload).is_template]:
            text = (
                f": vectors that stand for single people ({', '.join(templates)}) left the clients. With these "
                "vectors, their holder can recognise the people in other images."
            )
            found.append(Note(text, "warning", stage.label))
        if stage.discloses is not None and (undeclared := set(left(run, stage)) - set(stage.discloses)):
            text = f" sent what it had not declared: {', '.join(sorted(undeclared))}."
            found.append(Note(text, "alarm", stage.label))
    return found


def left(run: Run, stage: StageRecord) -> list[str]:
    """Declared payloads, then any others that the ledger saw going up."""
    seen = (payload for direction, payload in run.records[stage.name].payloads if direction == "up")
    return list(dict.fromkeys((*(stage.discloses or ()), *sorted(seen))))
