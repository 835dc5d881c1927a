"""Privacy of a run: what attacks found."""

from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.privacy.audit import Audit
from personae.report.privacy import COLUMNS, attack_row, unmeasured_rows
from personae.screen.basics import print_json, say


def audit(found: Audit, page: Path, as_json: bool) -> None:
    """A line for each figure, with what chance gives."""
    if as_json:
        print_json(asdict(found))
        return
    measured = [each for each in found.findings if each.value is not None]
    if measured:
        table = Table(*COLUMNS, box=box.SIMPLE_HEAD)
        for finding in measured:
            style = "bold red" if finding.beyond_chance else ""
            table.add_row(*(Text(cell, style=style) for cell in attack_row(finding)))
        output.print(table)
    for attack, stages, why in unmeasured_rows(found.findings):
        say(f"{attack} ({stages}): not measured: {why}")
    say(f"report: {page}")
