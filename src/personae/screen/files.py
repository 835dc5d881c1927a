"""Recipes, and files that a command has made."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.screen.basics import print_json, say


def paths(made: Sequence[Path], as_json: bool) -> None:
    """Files and folders that a command has made."""
    if as_json:
        print_json([str(path) for path in made])
        return
    for path in made:
        say(str(path))


def recipes(summaries: Mapping[str, str], as_json: bool) -> None:
    """The recipes by name, with what each says of itself."""
    if as_json:
        print_json(summaries)
        return
    table = Table("recipe", "", box=box.SIMPLE_HEAD)
    for name, text in summaries.items():
        table.add_row(Text(name), Text(text))
    output.print(table)
    say("personae run RECIPE runs one; personae init RECIPE writes it as a file of your own, to edit")


def written_experiment(path: Path, command: str) -> None:
    """Where an experiment file is, and how it runs."""
    say(f"{path}: edit it, then: personae {command} {path}")
