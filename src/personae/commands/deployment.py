"""Runs over a network: be the server or a client, and what both need for it."""

import contextlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from click import Choice

from personae import screen
from personae.commands.options import (
    Align,
    AsJson,
    AsTheyAre,
    Device,
    ExperimentFile,
    IdentityLevel,
    Missed,
    Settings,
    SkipUnreadable,
    Track,
    Unlabelled,
    Variant,
    announce,
    check_device,
    execution_of,
    experiments_of,
    handling_of,
    texts_of,
)
from personae.console import notify
from personae.deferred import importing
from personae.deployment.places import members_in, require_faces
from personae.deployment.processes import require_flower
from personae.errors import ConfigError
from personae.interrupts import interruptible
from personae.written import options

app = typer.Typer()
CODINGS = options("personae.runtime.coding", "CODINGS")


@app.command()
def serve(
    path: ExperimentFile,
    certs: Annotated[Path, typer.Option(help="The server's folder, as made by personae certs.")] = Path("certs/server"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 9093,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.")] = None,
    settings: Settings = None,
    variant: Variant = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last completed round.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds that clients have to answer.")] = 600.0,
    wait: Annotated[float, typer.Option(help="Seconds for clients to connect before the run begins.")] = 3600.0,
    coding: Annotated[str, typer.Option(click_type=Choice(CODINGS), help="How models travel.")] = "exact",
    largest: Annotated[
        int | None,
        typer.Option(min=1, help="The largest answer in MiB. Default: 64, plus four times the model."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Exclude a client from the run; repeat for more.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Include it again; repeat for more.")
    ] = None,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use this SuperLink. By default serve starts its own.")
    ] = None,
    superlink_certs: Annotated[
        Path | None, typer.Option(help="Folder with the gate's key at that SuperLink, and the SuperLink's ca.crt.")
    ] = None,
    device: Device = "cpu",
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment over a network, with the clients that join."""
    require_flower()
    (experiment,) = experiments_of(texts_of(path, settings, [variant]))
    with importing():
        from personae.deployment import serve as deployed
        from personae.deployment.plan import Conditions, largest_answer
        from personae.report.html import write_report
        from personae.tracking import trackers

    check_device(device)
    folder = out or Path("runs") / (f"{experiment.name}-{variant}" if variant else experiment.name)
    most = largest_answer(experiment) if largest is None else largest << 20
    followed = (*experiment.tracking.trackers, *(track or ()))
    trackers(followed)  # whether all of them are there
    conditions = Conditions(
        deadline=deadline, wait=wait, coding=coding, max_bytes=most, device=device, trackers=followed
    )
    announce(experiment)
    if (superlink is None) != (superlink_certs is None):
        raise ConfigError("--superlink and --superlink-certs go together; leave both out to have a SuperLink started")
    elsewhere = deployed.Elsewhere(superlink, superlink_certs) if superlink and superlink_certs else None
    with interruptible(f"stopped; the completed rounds are in {folder}; continue with the same and --resume"):
        deployed.serve(
            experiment,
            folder,
            certs,
            host=host,
            port=port,
            conditions=conditions,
            resume=resume,
            exclude=exclude or (),
            include=include or (),
            superlink=elsewhere,
            notify=notify,
        )
    screen.models(folder, write_report(folder), as_json)


@app.command()
def join(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.")],
    data: Annotated[Path, typer.Option(help="This client's faces: a folder per identity, a zip, or a list.")],
    certs: Annotated[Path, typer.Option(help="This client's folder, as made by personae certs.")],
    home: Annotated[Path, typer.Option(help="Folder for what never leaves this client.")] = Path("personae-home"),
    secret: Annotated[
        Path | None, typer.Option(help="File with the secret that the clients share, as made by personae secret.")
    ] = None,
    public: Annotated[Path | None, typer.Option(help="This client's copy of the experiment's public faces.")] = None,
    unlabelled: Unlabelled = False,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGEST", help="Accept a plan without being asked; `all`: every plan of this server."),
    ] = None,
    each: Annotated[
        bool,
        typer.Option(
            "--each",
            help="Several clients: --data, --certs and --home are folders with an entry for each, by its name.",
        ),
    ] = False,
    device: Device = "cpu",
) -> None:
    """Take part in a server's runs with the faces of this machine, until stopped.

    Shows what the server plans, and asks once for every run.
    """
    require_flower()
    places = members_in(certs, data, home) if each else {"": (certs, data, home)}
    for _, faces, _ in places.values():
        require_faces(faces)
    with importing():
        from personae.deployment import join as deployed
        from personae.deployment.consent import accepted_of
        from personae.deployment.desk import Workshop

    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    asks, workshop = bool(sys.stdin and sys.stdin.isatty()), Workshop()
    members = {}
    for name, (own_certs, own_data, own_home) in places.items():
        execution, named = execution_of(device), f"{name}: " if name else ""
        member = deployed.Member(
            data=own_data,
            home=own_home,
            unlabelled=unlabelled,
            secret=secret,
            public=public,
            handling=handling,
            execution=replace(execution, notify=partial(_say, named)),
            accept=accepted_of(accept or ()),
            ask=partial(typer.confirm, f"{named}take part?".capitalize(), err=True) if asks else None,
            workshop=workshop,
        )
        members[name] = member, own_certs
    with contextlib.suppress(KeyboardInterrupt):
        if each:
            deployed.join_all(server, members)
        else:
            deployed.join(server, *members[""])


def _say(name: str, line: str) -> None:
    notify(f"{name}{line}")


@app.command()
def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write them; existing files are kept.")
    ] = Path("certs"),
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the server; repeat for more.")
    ] = None,
    clients: Annotated[
        list[str] | None, typer.Option("--client", help="The name of a client; repeat for more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a certificate authority, the server's certificate and a key for each client, for tests and labs."""
    require_flower()
    from personae.deployment.certs import make_certificates

    screen.paths(make_certificates(folder, hosts or [], clients or []), as_json)


@app.command()
def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; an existing file is kept.")],
) -> None:
    """Make the secret that clients share (FedGC's `link`), and print its digest. The server gets only the digest."""
    from personae.experiment.shared_secret import make_secret

    typer.echo(make_secret(file))


@app.command()
def deal(
    path: ExperimentFile,
    out: Annotated[Path, typer.Option(help="Folder for one zip file per client.")] = Path("dealt"),
    settings: Settings = None,
    skip_unreadable: SkipUnreadable = False,
    as_json: AsJson = False,
) -> None:
    """Divide an experiment's private faces into one file per client, to try a deployment."""
    (experiment,) = experiments_of(texts_of(path, settings))
    with importing():
        from personae.experiment.faces import deal as deal_faces
        from personae.experiment.materials import Materials

    experiment = experiment.handled(handling_of(skip_unreadable))
    screen.paths(deal_faces(Materials(experiment, execution_of()), out), as_json)
