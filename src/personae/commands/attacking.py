"""What attackers among the clients can do to an experiment, and whether they have done it to a model."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import (
    AsJson,
    Device,
    ExperimentFile,
    Settings,
    StageName,
    Variant,
    Workers,
    check_device,
    execution_of,
    experiments_of,
    name_in,
    texts_of,
)
from personae.deferred import importing
from personae.errors import ConfigError
from personae.experiment.taken import is_taken
from personae.written import register

app = typer.Typer()
NAMES = ", ".join(register("personae.attacks", "ATTACKS").own)


@app.command()
def attack(
    path: ExperimentFile,
    name: Annotated[str, typer.Option("--with", metavar="NAME", help=f"The attack: {NAMES}.")],
    share: Annotated[float, typer.Option(help="Share of the clients that attack; at least one client.")] = 0.2,
    scale: Annotated[float, typer.Option(help="Multiply what attackers change by this factor.")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="Folder of both runs; runs/attack-NAME by default.")] = None,
    settings: Settings = None,
    variant: Variant = None,
    workers: Workers = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run an experiment with attackers among its clients: what it costs, and what the server did."""
    texts = texts_of(path, settings, [variant])
    folder = out or Path("runs") / f"attack-{name_in(texts)}"
    attacked = folder / f"{name}-{share:g}-x{scale:g}"
    if is_taken(attacked):
        raise ConfigError(f"{attacked}: this attack was tried already; choose another folder with --out")
    (experiment,) = experiments_of(texts)
    with importing():
        from personae.attacks import ATTACKS
        from personae.attacks.trial import try_attack

    if name not in ATTACKS:
        raise ConfigError(f"--with {name}: there is no such attack; there are {', '.join(ATTACKS)}")
    chosen = ATTACKS[name](scale=scale)
    trial = try_attack(experiment, folder, chosen, share, execution_of(device, workers))
    screen.trial(trial, folder, as_json)


@app.command()
def triggers(
    model: Annotated[Path, typer.Argument(help="A run or a weights file (.safetensors, .pth).")],
    before: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="A model from before the attack; of a run, what its stage began with."),
    ] = None,
    stage: StageName = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Look for a backdoor: a patch in which rendered strangers pass for each other. Exit code 7 if there is one."""
    with importing():
        from personae.experiment.triggers import search_triggers

    check_device(device)
    screen.triggers(search_triggers(model, before, stage=stage, device=device), as_json)
