"""What there is: the algorithms and layers, what they let out of a client, this machine and this version."""

from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson

app = typer.Typer()


def _algorithm_names(incomplete: str) -> list[str]:
    """For the completion of a shell."""
    from personae.algorithms import AVAILABLE

    return [name for name in AVAILABLE if name.startswith(incomplete)]


@app.command()
def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(help="An algorithm, or module:Class; explains its parameters.", autocompletion=_algorithm_names),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or explain one and its parameters."""
    if name is None:
        screen.algorithms(as_json)
    else:
        screen.algorithm(name, as_json)


def _layer_names(incomplete: str) -> list[str]:
    """For the completion of a shell."""
    from personae.layers import LAYERS

    return [name for name in LAYERS if name.startswith(incomplete)]


@app.command()
def layers(
    name: Annotated[
        str | None,
        typer.Argument(help="A layer, or module:Class; explains its settings.", autocompletion=_layer_names),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the layers that go around algorithms, or explain one and its settings."""
    if name is None:
        screen.layers(as_json)
    else:
        screen.layer(name, as_json)


@app.command()
def disclose(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what leaves a client in each algorithm."""
    screen.disclosure(as_markdown, as_json)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, extras, cores, cache and speed."""
    from personae.doctor import examine

    screen.findings(examine(), as_json)
