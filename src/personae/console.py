"""What a person sees: progress bars in a terminal, plain lines elsewhere, and tables."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
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


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{_round(speed)} {task.fields['unit']}/s")


@contextmanager
def _bar(description: str, total: int, unit: str) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages) as progress:
        task = progress.add_task(description, total=total, unit=unit)
        yield lambda count: progress.advance(task, count)


@contextmanager
def _lines(description: str, total: int, unit: str) -> Iterator[Advance]:
    began = spoken = time.monotonic()
    done = 0

    def line(now: float) -> str:
        rate = done / max(now - began, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if 0 < done < total else ""
        return f"{description}: {done}/{total} {unit}, {_round(rate)} {unit}/s{left}"

    def advance(count: int) -> None:
        nonlocal done, spoken
        done += count
        now = time.monotonic()
        if now - spoken >= LINE_EVERY and done < total:
            spoken = now
            messages.print(line(now), markup=False, soft_wrap=True)

    yield advance
    messages.print(line(time.monotonic()), markup=False, soft_wrap=True)


def _round(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
