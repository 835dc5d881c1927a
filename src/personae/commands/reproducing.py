"""The claims of a paper, put to the test."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personae import screen
from personae.commands.options import AsJson, Device, execution_of, runs_at_once
from personae.console import notify
from personae.deferred import importing
from personae.errors import Interrupted, OutOfTime
from personae.interrupts import interruptible
from personae.written import literal, options

if TYPE_CHECKING:
    from personae.reproduce.reproduce import Scale
else:
    (Scale,) = literal("personae.reproduce.reproduce", "Scale")

app = typer.Typer()
NAMES = ", ".join(options("personae.reproduce.systems", "SYSTEMS"))


@app.command(name="reproduce")
def reproduce_claims(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"The system: {NAMES}.")],
    scale: Annotated[
        Scale, typer.Option(help="small: minutes on two cores; large: nearer to the paper; paper: its size.")
    ] = "small",
    claims: Annotated[str, typer.Option(metavar="ID,ID", help="Some of its claims; all by default.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds (0, 1, ...); each has its own people.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them, to judge on seeds not yet seen.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/reproduce-NAME-SCALE by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue; finished runs are not repeated.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", min=0, help="Stop after this many minutes (exit code 5); --resume continues."),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Judge runs made elsewhere, from their records.jsonl; run nothing."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time: one per core, or 8 on a GPU.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run the experiments behind a paper's claims, and say which of them hold."""
    with importing():
        from personae.reproduce.reproduce import find_system, reproduce
        from personae.reproduce.runner import Runner

    system = find_system(name)
    folder = out or Path("runs") / f"reproduce-{name}-{scale}"
    hint = f"personae reproduce {name} --scale {scale} --seeds {seeds} --out {folder} --device {device} --resume"
    hint += (f" --claims {claims}" if claims else "") + ("" if budget is None else f" --budget {budget:g}")
    hint += f" --first-seed {first_seed}" if first_seed else ""
    hint += "" if workers is None else f" --workers {workers}"
    deadline = None if budget is None else time.monotonic() + 60 * budget
    left = f"what is done is in {folder}; continue with: {hint}"
    try:
        with interruptible(f"stopped; {left}"):
            result = reproduce(
                system,
                folder,
                scale=scale,
                claims=[item.strip() for item in claims.split(",")] if claims else [],
                seeds=seeds,
                first_seed=first_seed,
                resume=resume,
                records=records or [],
                runner=Runner(execution_of(device, runs_at_once(device, workers)), deadline),
                notify=notify,
            )
    except OutOfTime:
        raise Interrupted(f"the {budget:g} minutes are spent; {left}") from None
    screen.findings_of_claims(result, folder, as_json)
