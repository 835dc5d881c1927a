"""What came of a run: the verdict in sentences, and a table with methods as rows that fits 80 columns."""

from rich import box
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.report.verdict import Verdict
from personae.screen.basics import say


def verdict(found: Verdict) -> None:
    """Sentences, then the table."""
    for sentence in (*found.sentences, *found.remarks):
        say(sentence)
    if found.rows:
        output.print(verdict_table(found))
        output.print(found.caption, style="dim", markup=False)


def verdict_table(found: Verdict) -> Table:
    """The best of each column is bold; what pooled all faces is there to compare with."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("method", overflow="fold")
    for heading in found.headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        # Text, not str: square brackets in a label are no instruction to the console.
        cells = [Text(cell, "bold green" if best else "") for cell, best in zip(row.cells, row.best, strict=True)]
        table.add_row(Text(row.label), *cells)
    return table
