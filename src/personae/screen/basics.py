"""Lines and JSON, for all of the screen."""

import json
from collections.abc import Sequence
from typing import Any

import typer

from personae.console import output

SHOWN = 10  # of a long list of examples


def listed(items: Sequence[str], unit: str, shown: int = SHOWN) -> str:
    rest = f" and {len(items) - shown} {unit}" if len(items) > shown else ""
    return ", ".join(items[:shown]) + rest


def say(text: str) -> None:
    output.print(text, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1))


def size_text(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
