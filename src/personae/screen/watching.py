"""A run while it is going on, in a terminal or as lines."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.report.records import Run, read_run
from personae.report.watching import headline, standings
from personae.screen.basics import say

STYLES = {"finished": "green", "running": "bold", "waiting": "dim"}


def watch(folder: Path, every: float, seen: Callable[[Run], None], *, once: bool = False) -> None:
    """Show where a run stands until it is finished; `seen` gets it whenever there is news."""
    if not output.is_terminal:
        _lines(folder, every, seen, once)
        return
    with Live(console=output, auto_refresh=False) as live:
        for run in _news(folder, every, once):
            seen(run)
            live.update(_panel(run), refresh=True)


def _lines(folder: Path, every: float, seen: Callable[[Run], None], once: bool) -> None:
    said = ""
    for run in _news(folder, every, once):
        seen(run)
        if (now := headline(run)) != said:
            said = now
            say(now)


def _news(folder: Path, every: float, once: bool) -> Iterator[Run]:
    before: object = None
    while True:
        changed = _changed(folder)
        run = read_run(folder)
        if changed != before:
            before = changed
            yield run
        if once or (run.stages and not run.unfinished):
            return
        time.sleep(every)


def _changed(folder: Path) -> tuple[int, ...]:
    """Sizes of what grows with every round and stage."""
    files = [folder / "metrics.jsonl", folder / "timing.jsonl", *sorted((folder / "evaluation").glob("*.json"))]
    return tuple(path.stat().st_size for path in files if path.is_file())


def _panel(run: Run) -> Group:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in ("stage", "", "rounds", "loss", "time left"):
        table.add_column(title, justify="right" if title in ("rounds", "loss", "time left") else "left")
    for each in standings(run):
        bar = ProgressBar(total=each.rounds or 1, completed=each.done, width=20)
        style = STYLES[each.state]
        table.add_row(Text(each.label, style), bar, each.of, each.loss, each.left or each.state)
    return Group(Text(f"{run.name}: {headline(run)}"), table)
