"""Runs: the demo, an experiment, the claims of a paper, and the report of a run."""

import time
from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import (
    Align,
    AsJson,
    AsTheyAre,
    Device,
    IdentityLevel,
    Missed,
    Settings,
    SkipUnreadable,
    Track,
    Unlabelled,
    Variant,
    Without,
    Workers,
    execution_of,
    handling_of,
    options_of,
    recipe_names,
    tell_what_leaves,
)
from personae.console import notify
from personae.errors import ConfigError, Interrupted, OutOfTime
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.forecast import forecast
from personae.experiment.materials import Materials
from personae.experiment.proposal import are_faces, propose
from personae.experiment.recipes import write_new
from personae.experiment.run import run_with_report
from personae.experiment.rundir import is_taken
from personae.interrupts import interruptible
from personae.report.html import write_report
from personae.reproduce.reproduce import Scale, find_system, reproduce
from personae.reproduce.runner import Runner
from personae.reproduce.systems import SYSTEMS

app = typer.Typer()


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer photographs and rounds: one minute.")] = False,
    every: Annotated[bool, typer.Option("--all", help="All five systems, one row each: several minutes more.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/demo by default.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last completed round, if there is one.")
    ] = False,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Compare training alone, together and on pooled faces. It takes four minutes and needs no data."""
    if quick and every:
        raise ConfigError("--quick and --all are two demos; choose one")
    name, option, following = "demo", "", "personae demo --all"
    if quick:
        name, option, following = "demo-quick", "--quick ", "personae demo"
    elif every:
        name, option, following = "demo-all", "--all ", "personae recipes"
    usual = Path("runs") / name
    folder = out or (usual if resume else _free(usual))
    hint = f"personae demo {option}--out {folder} --resume" + "".join(f" --track {name}" for name in track or [])
    execution = execution_of(workers=workers, trackers=track)
    page = _execute(load_experiment(name), folder, execution, resume=resume, hint=hint)
    screen.demo(folder, page, following)


@app.command()
def run(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="EXP | FACES",
            help="An experiment file, the name of a recipe, or a folder of faces.",
            autocompletion=recipe_names,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With FACES: run the proposal.")] = False,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="With FACES: write the proposal to this file.")
    ] = None,
    public: Annotated[
        Path | None, typer.Option(metavar="FACES", help="With FACES: public faces to pre-train on.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help="With FACES: a model to start from.")] = None,
    clients: Annotated[int | None, typer.Option(min=2, help="With FACES: how many clients share them.")] = None,
    unlabelled: Unlabelled = False,
    settings: Settings = None,
    variant: Variant = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last completed round, if there is one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print clients, samples, bytes and memory; train nothing.")
    ] = False,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    workers: Workers = None,
    device: Device = "cpu",
    without: Without = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment. Given a folder of faces, propose one."""
    execution = execution_of(device, workers, without, track)
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    given = {"--to": to, "--public": public, "--weights": weights, "--clients": clients}
    on_faces = [option for option, value in {"--yes": yes, **given, "--unlabelled": unlabelled}.items() if value]
    chosen = options_of(handling)
    if are_faces(path):
        if settings or variant:
            raise ConfigError("--set and --variant go with an experiment file: write one with --to FILE, and run that")
        proposal = propose(
            path,
            execution,
            public=public,
            weights=weights,
            clients=clients,
            unlabelled=unlabelled,
            handling=handling,
        )
        if to is not None:
            write_new(to, proposal.text)
        if not (yes or dry_run):
            screen.proposal(proposal, to, as_json)
            return
        notify(proposal.why)
        experiment = proposal.experiment
        chosen += "".join(f" {option} {value}" for option, value in given.items() if value and option != "--to")
        chosen += " --yes" + (" --unlabelled" if unlabelled else "")
    elif on_faces:
        raise ConfigError(
            f"{', '.join(on_faces)}: these go with a folder of faces; an experiment file has its own settings"
        )
    else:
        experiment = load_experiment(path, settings or [], variant).handled(handling)
    if dry_run:
        screen.forecast(forecast(Materials(experiment, execution)), as_json)
        return
    folder = out or Path("runs") / (f"{experiment.name}-{variant}" if variant else experiment.name)
    hint = f"personae run {path} --out {folder} --resume" + (f" --variant {variant}" if variant else "")
    hint += "".join(f" --set {item}" for item in settings or [])
    hint += "".join(f" --without {name}" for name in without or [])
    hint += "".join(f" --track {name}" for name in track or [])
    hint += chosen
    page = _execute(experiment, folder, execution, resume=resume, hint=hint)
    screen.models(folder, page, as_json)


@app.command(name="reproduce")
def reproduce_claims(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"The system: {', '.join(SYSTEMS)}.")],
    scale: Annotated[
        Scale, typer.Option(help="small: minutes on two cores; large: nearer to the paper; paper: its size.")
    ] = "small",
    claims: Annotated[str, typer.Option(metavar="ID,ID", help="Some of its claims; all by default.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds (0, 1, ...); each has its own people.")] = 3,
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
    system = find_system(name)
    folder = out or Path("runs") / f"reproduce-{name}-{scale}"
    hint = f"personae reproduce {name} --scale {scale} --seeds {seeds} --out {folder} --device {device} --resume"
    hint += (f" --claims {claims}" if claims else "") + ("" if budget is None else f" --budget {budget:g}")
    hint += "" if workers is None else f" --workers {workers}"
    deadline = None if budget is None else time.monotonic() + 60 * budget
    try:
        result = reproduce(
            system,
            folder,
            scale=scale,
            claims=[item.strip() for item in claims.split(",")] if claims else [],
            seeds=seeds,
            resume=resume,
            records=records or [],
            runner=Runner(execution_of(device, workers), deadline),
            notify=notify,
        )
    except (KeyboardInterrupt, OutOfTime) as stop:
        why = f"the {budget:g} minutes are spent" if isinstance(stop, OutOfTime) else "stopped"
        raise Interrupted(f"{why}; what is done is in {folder}; continue with: {hint}") from None
    screen.findings_of_claims(result, folder, as_json)


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")], as_json: AsJson = False
) -> None:
    """Rewrite a run's report.html and print its table."""
    screen.models(path, write_report(path), as_json)


def _execute(experiment: Experiment, out: Path, execution: Execution, *, resume: bool, hint: str) -> Path:
    """Run it, and say where its report is."""
    tell_what_leaves(experiment)
    with interruptible(f"stopped; the completed rounds are in {out}; continue with: {hint}"):
        return run_with_report(experiment, out, execution, resume=resume).report


def _free(wanted: Path) -> Path:
    """The folder itself, or with the first number behind it that makes it new."""
    number, path = 1, wanted
    while is_taken(path):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
