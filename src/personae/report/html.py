"""`report.html`: one page with everything about a run, which needs nothing beside it: no network, no scripts."""

from pathlib import Path

from personae.files import write_text
from personae.report.clusters import cluster_section
from personae.report.fairness import fairness_section
from personae.report.figures import chosen, legend, operating_points, per_client, progress, score_distributions
from personae.report.first_screen import chart, disclosures, sent
from personae.report.records import Run, read_run
from personae.report.sections import faces, notices, results, setting, timing, traffic
from personae.report.table import heading
from personae.report.templates import metrics_of, render
from personae.report.verdict import verdict


def write_report(run: Path) -> Path:
    """Write `report.html` into a run directory, finished or not, and say where."""
    target = run / "report.html"
    write_text(target, page(read_run(run)))
    return target


def page(run: Run) -> str:
    found = verdict(run)
    every = (
        results(run, found),
        per_client(run),
        progress(run),
        operating_points(run),
        score_distributions(run),
        cluster_section(run),
        faces(run),
        fairness_section(run),
        traffic(run),
        timing(run),
        setting(run),
    )
    sections = [section for section in every if section]
    metrics = metrics_of([figure for section in sections for figure in section.figures])
    usual = chosen(heading(found.decisive.metric)[1]) if found.decisive else ""
    return render(
        "run",
        title=run.name,
        kicker="Federated face recognition" + (f", seed {run.config['seed']}" if "seed" in run.config else ""),
        run=run,
        verdict=found,
        chart=chart(found),
        sent=sent(run),
        notices=notices(run),
        disclosures=disclosures(run),
        sections=sections,
        legend=legend(run),
        metrics=metrics,
        usual=usual if usual in metrics else (metrics or [""])[0],
    )
