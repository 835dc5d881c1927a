"""The experiments that come with the package: list them, or write one to edit."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import AsJson, recipe_names
from personae.experiment import recipes
from personae.experiment.reading import read_experiment

app = typer.Typer()


@app.command(name="recipes")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes: experiments that come with the package."""
    screen.recipes({name: recipes.summary(path) for name, path in recipes.recipes().items()}, as_json)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The recipe to start from.", autocompletion=recipe_names)] = "quick",
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="File to write; NAME.toml by default.")
    ] = None,
) -> None:
    """Write a recipe to a file that you can edit."""
    path = to or Path(f"{name.replace('/', '-')}.toml")
    recipes.write_recipe(name, path)
    faces = read_experiment(path)[0].get("data", {})
    screen.written_experiment(path, "run" if "private" in faces else "serve")
