"""Runs: the demo, an experiment, and several variants of one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Without,
    Workers,
    announce,
    execution_of,
    experiments_of,
    handling_of,
    name_in,
    options_of,
    recipe_names,
    runs_at_once,
    texts_of,
)
from personae.console import notify
from personae.deferred import importing
from personae.errors import ConfigError
from personae.experiment.reading import are_faces
from personae.experiment.taken import is_taken, require_free
from personae.interrupts import interruptible

if TYPE_CHECKING:  # what takes seconds is imported once the text of an experiment is known to be one
    from personae.experiment.config import Experiment
    from personae.experiment.execution import Execution

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
    require_free(folder, resume=resume)
    with importing():
        from personae.experiment.config import load_experiment

    hint = f"personae demo {option}--out {folder} --resume" + "".join(f" --track {name}" for name in track or [])
    page = _execute(load_experiment(name), folder, execution_of(workers=workers, trackers=track), resume, hint)
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
    variant: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Variants of the experiment: one, or several at once.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="With several variants: runs at once: one per core, or 8 on a GPU.")
    ] = None,
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
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    chosen = options_of(handling)
    names = _variants(variant, jobs, alone={"--workers": workers, "--dry-run": dry_run})
    given = {"--to": to, "--public": public, "--weights": weights, "--clients": clients}
    on_faces = {"--yes": yes, **given, "--unlabelled": unlabelled}
    if are_faces(path):
        if settings or variant:
            raise ConfigError("--set and --variant go with an experiment file: write one with --to FILE, and run that")
        from personae.experiment.proposal import propose
        from personae.experiment.recipes import write_new

        execution = execution_of(device, workers, without, track)
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
        experiments = [proposal.experiment]
        chosen += "".join(f" {option} {value}" for option, value in given.items() if value and option != "--to")
        chosen += " --yes" + (" --unlabelled" if unlabelled else "")
    elif any(on_faces.values()):
        named = ", ".join(option for option, value in on_faces.items() if value)
        raise ConfigError(f"{named}: these go with a folder of faces; an experiment file has its own settings")
    else:
        texts = texts_of(path, settings, names)
        if not dry_run:
            folder = _folder(out, name_in(texts), names)
            for place in [folder / str(each) for each in names] if len(names) > 1 else [folder]:
                require_free(place, resume=resume)
        experiments = [each.handled(handling) for each in experiments_of(texts)]
        execution = execution_of(device, workers, without, track)
    experiment = experiments[0]
    if dry_run:
        from personae.experiment.forecast import forecast
        from personae.experiment.materials import Materials

        screen.forecast(forecast(Materials(experiment, execution)), as_json)
        return
    folder = _folder(out, experiment.name, names)
    hint = f"personae run {path} --out {folder} --resume" + (f" --variant {variant}" if variant else "")
    hint += f" --jobs {jobs}" if jobs else ""
    hint += "".join(f" --set {item}" for item in settings or [])
    hint += "".join(f" --without {name}" for name in without or [])
    hint += "".join(f" --track {name}" for name in track or [])
    hint += chosen
    if len(names) > 1:
        runs = {str(name): each for name, each in zip(names, experiments, strict=True)}
        execution = replace(execution, workers=runs_at_once(device, jobs))
        _execute_several(runs, folder, execution, resume, hint, as_json)
    else:
        screen.models(folder, _execute(experiment, folder, execution, resume, hint), as_json)


def _variants(named: str | None, jobs: int | None, alone: Mapping[str, Any]) -> list[str | None]:
    """The variants that were named, or None for the experiment as it stands."""
    names: list[str | None] = [name.strip() for name in named.split(",")] if named else [None]
    if len(names) == 1 and jobs:
        raise ConfigError(
            "--jobs goes with several variants, as in --variant A,B; the clients of one run have --workers"
        )
    if len(names) > 1 and (wrong := [option for option, value in alone.items() if value]):
        raise ConfigError(f"{wrong[0]} goes with one run; give one variant, or leave it out")
    if len(set(names)) < len(names):
        raise ConfigError(f"--variant {named}: name each of them once")
    return names


def _folder(out: Path | None, experiment: str, variants: list[str | None]) -> Path:
    """Where a run goes, or several of its variants."""
    which = "variants" if len(variants) > 1 else variants[0]
    return out or Path("runs") / (f"{experiment}-{which}" if which else experiment)


def _execute(experiment: "Experiment", out: Path, execution: "Execution", resume: bool, hint: str) -> Path:
    """Run it, and say where its report is."""
    with importing():
        from personae.experiment.run import run_with_report

    announce(experiment)
    with interruptible(f"stopped; the completed rounds are in {out}; continue with: {hint}"):
        return run_with_report(experiment, out, execution, resume=resume).report


def _execute_several(
    variants: "Mapping[str, Experiment]", out: Path, execution: "Execution", resume: bool, hint: str, as_json: bool
) -> None:
    """Run them, so many at a time as there are workers, and show them side by side."""
    from personae.reproduce.several import PAGE, run_several, unfinished

    for experiment in variants.values():
        announce(experiment)
    with interruptible(f"stopped; the completed rounds are in {out}; continue with: {hint}"):
        found, failed = run_several(variants, out, execution, resume=resume)
    screen.comparison(found, out / PAGE, as_json)
    if failed:
        raise unfinished(failed, "left out of the comparison")


def _free(wanted: Path) -> Path:
    """The folder itself, or with the first number behind it that makes it new."""
    number, path = 1, wanted
    while is_taken(path):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
