"""Which commands there are, read from the text of their modules: a module is imported when its command is called.

Together they import everything that this package builds on, which takes seconds, and a list of names needs none of it.
"""

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from click import Command
from typer.core import TyperArgument

from personae.deferred import importing

TOPICS: Mapping[str, tuple[str, ...]] = {
    "Run experiments": ("runs", "reproducing", "reporting", "comparing", "recipes"),
    "Look at faces and divide them": ("data", "partition"),
    "Use models": ("evaluation", "recognition"),
    "Train over a network": ("deployment", "admission"),
    "Privacy and attacks": ("privacy", "keeping", "attacking"),
    "Look things up": ("about",),
}
"""Modules beside this one, each with an `app`, in the order of `personae --help`."""


@dataclass(frozen=True)
class Entry:
    """Where a command is listed, which module has it, and what its help says."""

    heading: str
    module: str
    summary: str


class Catalogue(Mapping[str, Command]):
    """Every command by name."""

    def __init__(self) -> None:
        self.entries = {
            name: Entry(heading, module, text)
            for heading, modules in TOPICS.items()
            for module in modules
            for name, text in _commands(module)
        }

    def __getitem__(self, name: str) -> Command:
        with importing():
            found = importlib.import_module(f"personae.commands.{self.entries[name].module}")
        return typer.main.get_group(found.app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _commands(module: str) -> Iterator[tuple[str, str]]:
    """The names and words of the commands and groups that a module gives to its `app`."""
    words: dict[str, str] = {}  # of groups, by the names of their variables
    for part in ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")).body:
        match part:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call() as call):
                words[variable] = _given(call).get("help", "")
            case ast.Expr(value=ast.Call(func=function, args=[ast.Name(id=variable)]) as call):
                if ast.unparse(function) == "app.add_typer":
                    yield _given(call)["name"], words[variable]
            case ast.FunctionDef(decorator_list=[ast.Call(func=function) as call]):
                if ast.unparse(function) == "app.command":
                    yield _given(call).get("name", part.name), ast.get_docstring(part) or ""


def _given(call: ast.Call) -> dict[str, str]:
    """The named arguments of a call that are plain text."""
    values = {each.arg: each.value for each in call.keywords if each.arg}
    return {name: str(each.value) for name, each in values.items() if isinstance(each, ast.Constant)}


class Explained(TyperArgument):
    """An argument whose help is shown: click 8.5 keeps one too, and overwrites that of typer 0.20 with nothing."""

    def __init__(self, *, help: str | None = None, **settings: Any) -> None:  # noqa: A002 - as it is called
        super().__init__(help=help, **settings)
        self.help = help


typer.main.TyperArgument = Explained  # type: ignore[attr-defined]
