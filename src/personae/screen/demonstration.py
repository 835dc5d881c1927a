"""The last lines of the demo: three sentences and a table, in ten lines of 80 columns."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from personae.console import output
from personae.report.measured import Difference, difference
from personae.report.records import Run, read_run
from personae.report.verdict import Model, Question, Role, Verdict, verdict
from personae.report.warnings import counted_for_less, falls_of
from personae.report.wording import duration, joined, size
from personae.screen.basics import say

WIDTH = 80


def demo(run: Path, page: Path, following: str) -> None:
    """What came of the demo, where its report is, and what to type next."""
    content = read_run(run)
    for warning in (*falls_of(content), *counted_for_less(content)):
        output.print(f"- {warning}", style="yellow", markup=False, soft_wrap=True)
    for line in last_lines(content, page, following):
        say(line)


def last_lines(run: Run, page: Path, following: str) -> list[str]:
    found = verdict(run)
    took = duration(sum(sum(record.seconds.values()) for record in run.records.values()))
    end = f"Trained for {took}; report: {page}; next: {following}"
    return [*wrap(_who_won(found), WIDTH), *wrap(_what_left(run), WIDTH), *_table(found), end]


def _who_won(found: Verdict) -> str:
    """Who recognises new people best without pooling faces, what a personal model adds, and what pooling would."""
    best, base, question = found.best, found.baseline, found.decisive
    if best is None or base is None or question is None:
        return "Nothing was compared."
    gain = difference(best.figures[question.name], base.figures[question.name])
    said = f"{best.label} recognises {_share(best, question)} of {question.heading}, {base.label} "
    said += f"{_share(base, question)} ({_points(gain)}, {'not noise' if gain.beyond_noise else 'noise'})"
    return "; ".join([said, *_personal(found), *_pooled(found, best, question)]) + "."


def _personal(found: Verdict) -> Iterator[str]:
    """What models of their own add to the shared one of their stage or of the one before, on each client's people."""
    for each in found.models:
        stages = each.stage.name, each.stage.after
        shared = [other for other in found.models if other.stage.name in stages and not other.personal]
        if each.personal and each.role is Role.TOGETHER and shared and "own" in each.figures:
            gain = difference(each.figures["own"], shared[-1].figures["own"])
            yield f"{each.label} adds {_points(gain)} on own people{'' if gain.beyond_noise else ', noise'}"


def _pooled(found: Verdict, best: Model, question: Question) -> Iterator[str]:
    for each in found.models:
        if each.role is Role.POOLED and question.name in each.figures:
            ahead = difference(each.figures[question.name], best.figures[question.name])
            is_ahead = ahead.beyond_noise and ahead.value > 0
            yield f"{each.label} is ahead ({_points(ahead)})" if is_ahead else f"{each.label} is not ahead"


def _what_left(run: Run) -> str:
    sent = run.sent
    what = joined(list(dict.fromkeys(run.described(kind).short for kind, _ in sent.most_common())))
    pooled = [stage.label for stage in run.stages if stage.pools_faces]
    aside = f" (except {joined(pooled)})" if pooled else ""
    return f"No face left a client{aside}: {size(sent.total())} of {what}."


def _table(found: Verdict) -> Iterator[str]:
    """One line per method; a name that is too long is cut."""
    rates = {each.at for each in found.questions}
    names = [f"recognised {rates.pop()}" if len(rates) == 1 else "method", *(row.label for row in found.rows)]
    rows = [found.headings, *(row.cells for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = WIDTH - sum(widths) - 2 * len(widths)
    for name, cells in zip(names, rows, strict=True):
        yield "  ".join([name[:room].ljust(room), *map(str.rjust, cells, widths)])


def _points(gain: Difference) -> str:
    """`+12.3 ± 2.0`, half of the 95% interval to either side."""
    if gain.interval is None:
        return gain.points
    return f"{gain.points} ± {50 * (gain.interval.high - gain.interval.low):.1f}"


def _share(model: Model, question: Question) -> str:
    return f"{100 * model.figures[question.name].value:.0f}%"
