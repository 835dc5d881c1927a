"""Privacy of a run: what attacks find, and an annex for an impact assessment."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson, Device, execution_of
from personae.deferred import importing
from personae.written import register

app = typer.Typer()
NAMES = ", ".join(register("personae.privacy.audit", "PRIVACY_ATTACKS").own)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


@app.command()
def audit(
    run: RunFolder,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help=f"{NAMES}; repeatable; all by default."),
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
    with importing():
        from personae.experiment.auditing import ALL, audit_run
        from personae.report.html import write_report

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
    with importing():
        from personae.report.dpia import write_annex

    screen.paths([write_annex(run, to)], as_json)
