"""What is kept and for how long: forgetting a client or a person, and deleting what is old."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson, Settings, Workers, execution_of
from personae.deferred import importing
from personae.deployment.processes import require_flower
from personae.errors import ConfigError
from personae.experiment.retention import KINDS
from personae.interrupts import interruptible

app = typer.Typer()

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]


@app.command()
def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    client: Annotated[
        str | None, typer.Argument(metavar="CLIENT", help="Who is forgotten; with --person, all clients by default.")
    ] = None,
    person: Annotated[
        str | None, typer.Option("--person", metavar="NAME", help="Forget this person's faces, and no others.")
    ] = None,
    approximate: Annotated[
        int,
        typer.Option(
            "--approximate",
            metavar="ROUNDS",
            min=0,
            help="Do not go back: remove what it sent, and train so many rounds on without it.",
        ),
    ] = 0,
    check: Annotated[bool, typer.Option("--verify", help="Check the log of what was forgotten, and print it.")] = False,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The operator's Ed25519 key that signs the log.")
    ] = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train a run again without a client, or without a person, as if it had never taken part."""
    with importing():
        from personae.experiment.forgetting import forget as carry_out
        from personae.experiment.forgetting import model_digests
        from personae.experiment.forgetting_plan import plan_forgetting
        from personae.experiment.successor import finish_swap
        from personae.privacy.forgotten_log import operator_key, verify
        from personae.report.records import is_networked, read_run

    if check:
        screen.forgotten(verify(run), model_digests(run), as_json)
        return
    finish_swap(run)
    if is_networked(read_run(run)):
        _forget_over_a_network(run, client, person, approximate, key, dry_run, as_json)
        return
    execution = execution_of(workers=workers)
    forgetting = plan_forgetting(run, client, person, execution=execution, settings=settings or [], further=approximate)
    if dry_run:
        screen.forgetting(forgetting, as_json)
        return
    signing = operator_key(key)  # before anything is trained that could not be logged
    with interruptible(f"stopped; {run} is as it was; the same command goes on with what is done"):
        entry = carry_out(forgetting, execution, signing)
    screen.has_forgotten(forgetting, entry, as_json)


def _forget_over_a_network(
    run: Path, client: str | None, person: str | None, approximate: int, key: Path | None, dry_run: bool, as_json: bool
) -> None:
    require_flower()
    from personae.deployment import forgetting as deployed
    from personae.privacy.forgotten_log import operator_key

    forgetting = deployed.plan_forgetting(run, client, person, further=approximate)
    if dry_run:
        screen.forgetting(forgetting, as_json)
        return
    screen.has_forgotten(forgetting, deployed.forget(forgetting, operator_key(key)), as_json)


@app.command()
def purge(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or homes of clients.")],
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Such as 90d; by default the schedule of each run counts."),
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what",
            metavar="KIND",
            help=f"With --older-than: {', '.join(KINDS)}; repeat for more; checkpoints and private by default.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete what runs have kept for longer than they should."""
    with importing():
        from personae.experiment.purging import due
        from personae.experiment.purging import purge as delete

    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
    found = due(folders, older_than, what or ())
    if not dry_run:
        delete(found)
    screen.purged(found, dry_run, as_json)
