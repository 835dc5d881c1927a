"""The report of a run."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson

app = typer.Typer()


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")], as_json: AsJson = False
) -> None:
    """Rewrite a run's report.html and print its table."""
    from personae.report.html import write_report

    screen.models(path, write_report(path), as_json, watched=False)
