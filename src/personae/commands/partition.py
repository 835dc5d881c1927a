"""`personae partition`: who holds what."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import (
    AsJson,
    IdentityLevel,
    SkipUnreadable,
    Unlabelled,
    handling_of,
)
from personae.console import meter, notify
from personae.data.partition import By, PartitionPlan
from personae.deferred import importing
from personae.experiment.section import SYNTHETIC

app = typer.Typer()


@app.command()
def partition(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder, zip or list of faces, or `synthetic`.")],
    by: Annotated[By, typer.Option(help="How people are divided.")] = "equal",
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients.")] = None,
    mu: Annotated[float, typer.Option(help="Log-normal: the mean of the logarithm.")] = 3.0,
    sigma: Annotated[float, typer.Option(help="Log-normal: the deviation of the logarithm.")] = 3.0,
    shared: Annotated[float, typer.Option(help="Share of the people that several clients hold.")] = 0.0,
    new_clients: Annotated[int, typer.Option(help="Clients that take no part in training.")] = 0,
    predicate: Annotated[
        list[str] | None, typer.Option(help='By attributes: e.g. "Male & !Young"; repeat for more.')
    ] = None,
    source: Annotated[str, typer.Option(help="By domain: the source domain.")] = "",
    drop_small: Annotated[bool, typer.Option(help="Leave out people with a single image.")] = False,
    unlabelled: Unlabelled = False,
    identities: Annotated[int, typer.Option(help="Synthetic: how many people.")] = 200,
    seed: Annotated[int, typer.Option(help="The random seed of the partition.")] = 0,
    plot: Annotated[Path, typer.Option(help="Write a plot to this file.")] = Path("partition.png"),
    table: Annotated[Path | None, typer.Option(help="Write client, identity, image, split as CSV.")] = None,
    skip_unreadable: SkipUnreadable = False,
    identity_level: IdentityLevel = None,
    as_json: AsJson = False,
) -> None:
    """Divide faces among clients; print and plot who holds what."""
    with importing():
        from personae.data import open_faces, synthetic_faces
        from personae.report.partition_plot import plot_partition

    plan = PartitionPlan(
        by=by,
        clients=clients,
        mu=mu,
        sigma=sigma,
        shared=shared,
        new_clients=new_clients,
        predicates=tuple(predicate or ()),
        source=source,
        drop_small=drop_small,
    )
    if data == SYNTHETIC:
        faces = synthetic_faces(identities=identities, images=20, seed=seed, size=32, progress=meter)
    else:
        # Who holds what does not depend on whether faces are aligned.
        handling = handling_of(skip_unreadable, as_they_are=True, identity_level=identity_level)
        faces = open_faces(
            Path(data), height=112, width=112, progress=meter, notify=notify, unlabelled=unlabelled, **handling
        )
    division = plan.apply(faces, seed)
    plot_partition(faces, division, plot)
    if table:
        division.write_table(faces, table)
    screen.holdings(division.summary(faces), plot, as_json)
