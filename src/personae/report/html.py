"""`report.html`: one page with everything about a run, which needs nothing beside it: no network, no scripts."""

from importlib import resources
from pathlib import Path

from personae.files import write_text
from personae.report.clusters import cluster_section
from personae.report.figures import operating_points, per_client, progress, score_distributions
from personae.report.markup import Markup, join, tag
from personae.report.records import Run, read_run
from personae.report.sections import absences, course, disclosure, headline, ledger, notices, setting

SECTIONS = (
    headline,
    cluster_section,
    disclosure,
    course,
    progress,
    operating_points,
    score_distributions,
    per_client,
    ledger,
    absences,
    setting,
)


def write_report(run: Path) -> Path:
    """Write `report.html` into a run directory, finished or not, and say where."""
    target = run / "report.html"
    write_text(target, page(read_run(run)))
    return target


def page(run: Run) -> str:
    seed = f"seed {run.config['seed']}" if "seed" in run.config else ""
    header = tag("header", tag("p", "Federated face recognition", class_="kicker"), tag("h1", run.name), tag("p", seed))
    main = tag("main", notices(run), *(section(run) for section in SECTIONS))
    return document(f"{run.name} – personae", header, main)


def document(title: str, header: Markup, main: Markup) -> str:
    """A whole page with the style of all."""
    style = Markup(resources.files("personae.report").joinpath("style.css").read_text())
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        # Should anything foreign ever get into the page, the browser neither runs nor loads it.
        Markup(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        ),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        tag("title", title),
        tag("style", style),
    )
    return join(Markup("<!doctype html>\n"), tag("html", head, tag("body", header, main), lang="en"), "\n")
