"""`report.html`: one page with everything about a run, which needs nothing beside it: no network, no scripts."""

from collections.abc import Sequence
from pathlib import Path

from personae.files import write_text
from personae.report.clusters import cluster_section
from personae.report.comparison import Comparison, differences_section
from personae.report.content import Note, Section
from personae.report.fairness import fairness_section
from personae.report.figures import chosen, costs, legend, operating_points, per_client, progress, score_distributions
from personae.report.first_screen import chart, disclosures, sent
from personae.report.populations import populations_section
from personae.report.privacy import privacy_section
from personae.report.records import Run, read_run
from personae.report.sections import defence, faces, notices, results, setting, timing, traffic
from personae.report.table import heading
from personae.report.templates import metrics_of, render
from personae.report.verdict import Verdict, verdict
from personae.report.warnings import warnings_of


def write_report(run: Path) -> Path:
    """Write `report.html` into a run directory, finished or not, and say where."""
    target = run / "report.html"
    write_text(target, page(read_run(run)))
    return target


def page(run: Run) -> str:
    kicker = "Federated face recognition" + (f", seed {run.config['seed']}" if "seed" in run.config else "")
    return _page(run, verdict(run), kicker, notices(run), ends=[setting(run)])


def write_comparison(comparison: Comparison, target: Path) -> None:
    """A page like that of a run, with a run in the place of each stage."""
    found = comparison.verdict
    notes = [*comparison.notes, *(Note(line, "warning") for line in warnings_of(comparison.run))]
    starts = [differences_section(comparison)]
    write_text(target, _page(comparison.run, found, "Comparison of runs", notes, starts=starts))


def _page(
    run: Run,
    found: Verdict,
    kicker: str,
    notes: Sequence[Note],
    *,
    starts: Sequence[Section] = (),
    ends: Sequence[Section] = (),
) -> str:
    every = (
        *starts,
        results(run, found),
        per_client(run),
        progress(run),
        costs(run),
        operating_points(run),
        score_distributions(run),
        cluster_section(run),
        faces(run),
        fairness_section(run),
        populations_section(run),
        privacy_section(run),
        traffic(run),
        timing(run),
        defence(run),
        *ends,
    )
    sections = [section for section in every if section]
    metrics = metrics_of([figure for section in sections for figure in section.figures])
    usual = chosen(heading(found.decisive.metric)[1]) if found.decisive else ""
    return render(
        "run",
        title=run.name,
        kicker=kicker,
        verdict=found,
        chart=chart(run, found),
        sent=sent(run),
        notices=notes,
        disclosures=disclosures(run),
        sections=sections,
        legend=legend(run),
        metrics=metrics,
        usual=usual if usual in metrics else (metrics or [""])[0],
    )
