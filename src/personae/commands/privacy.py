"""Privacy of a run: what attacks find, and an annex for an impact assessment."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson, Device, execution_of
from personae.experiment.auditing import ALL, audit_run
from personae.privacy.audit import PRIVACY_ATTACKS
from personae.report.dpia import write_annex
from personae.report.html import write_report

app = typer.Typer()

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


@app.command()
def audit(
    run: RunFolder,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help=f"{', '.join(PRIVACY_ATTACKS.own)}; repeatable; all by default."),
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", help="Attack this stage; repeatable; all finished ones by default.")
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option("--shadows", metavar="N", min=16, help="Shadow people; as many as were trained on by default."),
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Attack a finished run's privacy, and write what was found into its folder and report."""
    found = audit_run(run, attack or [ALL], stages=stage or [], shadows=shadows, execution=execution_of(device))
    page = write_report(run)
    screen.audit(found, page, as_json)


@app.command()
def dpia(
    run: RunFolder,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Where to; RUN/dpia.md by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write an annex for a data-protection impact assessment from a run's records, with open questions."""
    screen.paths([write_annex(run, to)], as_json)
