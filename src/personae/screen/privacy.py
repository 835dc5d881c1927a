"""Privacy of a run: what attacks found."""

from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.privacy.audit import Audit
from personae.report.privacy import attack_row
from personae.screen.basics import print_json, say


def audit(found: Audit, page: Path, as_json: bool) -> None:
    """A line for each figure, with what chance gives."""
    if as_json:
        print_json(asdict(found))
        return
    table = Table("stage", "attack", "on", "figure", "found", "95%", "chance", "trials", box=box.SIMPLE_HEAD)
    for finding in found.findings:
        style = "bold red" if finding.beyond_chance else ""
        table.add_row(*(Text(cell, style=style) for cell in attack_row(finding)))
    output.print(table)
    say(f"report: {page}")
