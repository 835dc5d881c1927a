"""Runs side by side, and a run while it is going on."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson
from personae.errors import ConfigError
from personae.report.comparison import compare as compared
from personae.report.html import write_comparison
from personae.report.records import Run, read_run
from personae.report.watching import PAGE, write_watch_page

app = typer.Typer()
REFRESH = 5  # seconds after which a browser loads a page again


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN ...", help="Folders of runs; the first is compared with.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="Where the page goes.")] = Path("comparison.html"),
    as_json: AsJson = False,
) -> None:
    """Show runs side by side: differences with their intervals, curves, and what differs in their settings."""
    if len(runs) < 2:
        raise ConfigError("a comparison takes two runs or more")
    found = compared(runs)
    write_comparison(found, out)
    screen.comparison(found, out, as_json)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, here or at the server.")],
    page: Annotated[bool, typer.Option("--page", help=f"Also keep {PAGE} in it, which a browser loads again.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How often to look.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Say where it stands, and stop.")] = False,
) -> None:
    """Follow a run while it is going on, until it is finished."""
    read_run(run)  # says so if it is none

    def seen(now: Run) -> None:
        if page:
            write_watch_page(now, run, max(REFRESH, round(every)))

    if page:
        screen.paths([run / PAGE], as_json=False)
    screen.watch(run, every, seen, once=once)
