"""A run while it is going on: where each stage stands, for a terminal and as a page that is written again."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from personae.files import write_text
from personae.report.content import Section
from personae.report.figures import chosen, legend, progress
from personae.report.first_screen import chart
from personae.report.records import Run, StageRecord
from personae.report.sections import notices
from personae.report.table import heading
from personae.report.templates import metrics_of, render
from personae.report.verdict import verdict
from personae.report.wording import duration

PAGE = "watch.html"


@dataclass(frozen=True)
class Standing:
    """Where a stage stands; rounds are None while nobody has said how many there will be."""

    label: str
    done: int
    rounds: int | None
    loss: str
    left: str
    state: str

    @property
    def of(self) -> str:
        return f"{self.done}" if self.rounds is None else f"{self.done} of {self.rounds}"


def standings(run: Run) -> list[Standing]:
    return [_standing(run, stage) for stage in run.stages]


def _standing(run: Run, stage: StageRecord) -> Standing:
    record = run.records[stage.name]
    finished = record.evaluation is not None
    state = "finished" if finished else "running" if record.last_round else "waiting"
    remaining = 0 if finished or stage.rounds is None else stage.rounds - record.last_round
    left = time_left(record.seconds.values(), remaining) or ("" if finished else "–")
    loss = f"{record.loss[max(record.loss)]:.2f}" if record.loss else "–"
    return Standing(stage.label, record.last_round, stage.rounds, loss, left, state)


def time_left(seconds: Collection[float], remaining: int) -> str:
    """For so many rounds more, from those that are done; nothing where these say nothing."""
    each = sum(seconds) / len(seconds) if seconds else 0.0
    return f"about {duration(each * remaining)}" if each and remaining else ""


def headline(run: Run) -> str:
    """`stage 2 of 4, round 3 of 6, loss 1.40, about 12 s left`."""
    if not run.stages:
        return "begun; no round is complete yet"
    if not run.unfinished:
        return "finished"
    every = standings(run)
    at = next(number for number, each in enumerate(every) if each.state != "finished")
    return place(at + 1, len(every), every[at])


def place(number: int, stages: int, now: Standing) -> str:
    """Where a run is that is in this stage."""
    parts = [f"stage {number} of {stages}", now.label, f"round {now.of}"]
    parts += [f"loss {now.loss}"] if now.loss != "–" else []
    parts += [f"{now.left} left"] if now.left not in ("", "–") else []
    return ", ".join(parts)


def write_watch_page(run: Run, folder: Path, refresh: int) -> Path:
    """A page that loads itself again every so many seconds, until the run is finished."""
    finished = bool(run.stages) and not run.unfinished
    found, curves = verdict(run), progress(run)
    sections: list[Section] = [curves] if curves else []
    metrics = metrics_of(list(curves.figures))
    usual = chosen(heading(found.decisive.metric)[1]) if found.decisive else ""
    content = render(
        "watch",
        title=run.name,
        kicker="A run in progress" if not finished else "A finished run",
        headline=headline(run),
        finished=finished,
        standings=standings(run),
        notices=[note for note in notices(run) if note.kind == "warning"],
        chart=chart(run, found),
        sections=sections,
        legend=legend(run),
        metrics=metrics,
        usual=usual if usual in metrics else (metrics or [""])[0],
        refresh=0 if finished else refresh,
    )
    target = folder / PAGE
    write_text(target, content)
    return target
