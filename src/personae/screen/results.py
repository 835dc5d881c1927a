"""What came of a run: the verdict in sentences, and a table with methods as rows that fits 80 columns."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.privacy.spent import in_words, spent
from personae.report.clusters import plain_clusters, print_clusters
from personae.report.comparison import Comparison
from personae.report.content import Table as Content
from personae.report.fairness import plain_fairness
from personae.report.populations import plain_populations
from personae.report.records import read_events, read_run
from personae.report.table import rows_of
from personae.report.verdict import Verdict
from personae.report.verdict import verdict as verdict_of
from personae.report.warnings import counted_for_less, falls_of, remarks_on_rounds, warnings_of
from personae.screen.basics import print_json, say

SETTINGS = 12  # that are shown; the page has all


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


def comparison(found: Comparison, page: Path, as_json: bool) -> None:
    """Runs side by side: the verdict, what each gains over the first, and the settings in which they differ."""
    judged = found.verdict
    if as_json:
        rows = [
            {
                "run": model.stage.name,
                "method": row.label,
                "figures": dict(zip(judged.headings, row.cells, strict=True)),
                "difference": row.gain.text if row.gain else None,
            }
            for model, row in zip(judged.models, judged.rows, strict=True)
        ]
        said = [*judged.sentences, *judged.remarks]
        notes = [note.text for note in found.notes]
        print_json(
            {"page": str(page), "verdict": said, "notes": notes, "runs": rows, "settings": found.differences.rows}
        )
        return
    verdict(judged)
    for row in judged.rows:
        if row.gain is not None:
            say(f"{row.label}: {row.gain.text} points")
    for note in found.notes:
        output.print(f"- {note.text}", style="yellow", markup=False, soft_wrap=True)
    if found.differences.rows:
        output.print(_settings(found.differences))
    say(f"page: {page}")


def _settings(content: Content) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in content.head:
        table.add_column(Text(title), overflow="fold")
    for row in content.rows[:SETTINGS]:
        table.add_row(*map(Text, row))
    if len(content.rows) > SETTINGS:
        table.add_row(Text(f"and {len(content.rows) - SETTINGS} more, in the page"))
    return table


def models(run: Path, page: Path, as_json: bool, *, watched: bool = True) -> None:
    """The verdict of a run, its models side by side, and where its report is.

    Whoever `watched` it has read the remarks on its rounds.
    """
    content = read_run(run)
    found = verdict_of(content)
    if as_json:
        rows = [{"label": row.label, "metrics": row.metrics} for row in rows_of(content)]
        evaluated = {"verdict": [*found.sentences, *found.remarks], "models": rows}
        evaluated |= {"fairness": plain_fairness(run), "warnings": warnings_of(content)}
        evaluated |= {"differential_privacy": [each.plain() for each in spent(read_events(run))]}
        evaluated |= {"populations": populations} if (populations := plain_populations(run)) else {}
        evaluated |= {"clusters": clusters} if (clusters := plain_clusters(run)) else {}
        print_json({"run": str(run), "report": str(page), **evaluated})
        return
    _warn([*falls_of(content), *counted_for_less(content)])  # nobody should read figures before knowing of these
    verdict(found)
    print_clusters(output, run)
    if not watched:
        _warn(remarks_on_rounds(content))
    for each in spent(read_events(run)):
        say(f"differential privacy: {in_words(each)}")
    say(f"report: {page}")


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        output.print(f"- {line}", style="yellow", markup=False, soft_wrap=True)
