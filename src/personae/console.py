"""What a person sees: progress bars in a terminal, plain lines elsewhere, and tables."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from personae.progress import Advance

LINE_EVERY = 10.0  # seconds between plain lines

# Escape codes, and marks that turn the direction of what follows: a terminal would obey them.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Harmless(Console):
    """Shows names of clients, files and people, and what machines say of themselves, and obeys none of it."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), **options)


output = Harmless(highlight=False)  # results
messages = Harmless(stderr=True, highlight=False)  # everything else, so that results can be piped


def notify(line: str) -> None:
    messages.print(line, style="yellow", markup=False, soft_wrap=True)


@contextmanager
def meter(description: str, total: int, unit: str) -> Iterator[Advance]:
    """`personae.progress.Progress` for people."""
    with (_bar if messages.is_terminal else _lines)(description, total, unit) as advance:
        yield advance


class _Done(ProgressColumn):
    """How much is done and how fast, where nothing better is said."""

    def render(self, task: Task) -> Text:
        if task.fields["now"]:
            return Text(task.fields["now"])
        speed = task.finished_speed or task.speed
        rate = "" if speed is None else f" {_speed(speed, task.fields['unit'])}"
        return Text(f"{task.completed:.0f}/{task.total or 0:.0f}{rate}")


@contextmanager
def _bar(description: str, total: int, unit: str) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        _Done(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=messages) as progress:
        task = progress.add_task(description, total=total, unit=unit, now="")

        def advance(count: int, now: str = "") -> None:
            progress.update(task, advance=count, now=now or progress.tasks[0].fields["now"])

        yield advance


@contextmanager
def _lines(description: str, total: int, unit: str) -> Iterator[Advance]:
    began = spoken = time.monotonic()
    done, going_on = 0, ""

    def line(at: float) -> str:
        rate = done / max(at - began, 1e-9)
        left = f", {duration((total - done) / rate)} left" if 0 < done < total else ""
        if going_on:
            return f"{description}, {going_on}{left or f', {duration(at - began)}'}"
        return f"{description}: {done}/{total} {unit}, {_speed(rate, unit)}{left}"

    def advance(count: int, now: str = "") -> None:
        nonlocal done, spoken, going_on
        done, going_on = done + count, now or going_on
        at = time.monotonic()
        if at - spoken >= LINE_EVERY and done < total:
            spoken = at
            messages.print(line(at), markup=False, soft_wrap=True)

    yield advance
    messages.print(line(time.monotonic()), markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """`12 s`, `5 min`, `2.5 h`: as exact as a guess can be."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _speed(rate: float, unit: str) -> str:
    """By the minute where less than one is done in a second."""
    shown, of = (rate, "s") if rate >= 1 or not rate else (60 * rate, "min")
    return f"{shown:,.0f} {unit}/{of}" if shown >= 10 else f"{shown:.2g} {unit}/{of}"
