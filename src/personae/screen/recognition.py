"""Models in use: figures, files, people and matches."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.data.images import ImageError
from personae.errors import NO_MATCH, DataError
from personae.evaluation.protocols import BenchmarkResult
from personae.evaluation.suite import Evaluation
from personae.experiment.clusters import LABELS, SHEET, Clusters
from personae.parts.pseudo import ADVICE
from personae.recognition.enrolment import Enrolment
from personae.recognition.export import Exported
from personae.recognition.faces import complaint
from personae.recognition.gallery import Gallery
from personae.recognition.recogniser import Match
from personae.recognition.threshold import Threshold
from personae.report.evaluation_page import figure_rows, figure_text, metric_names
from personae.screen.basics import print_json, say
from personae.words import counted


def benchmarks(evaluation: Evaluation, page: Path | None, as_json: bool) -> None:
    """One column per benchmark, one line per metric; groups of people below."""
    results = evaluation.results
    if as_json:
        print_json({name: dataclasses.asdict(result) for name, result in results.items()})
        return
    table = Table("%", *map(escape, results))
    for metric, *cells in figure_rows(evaluation):
        table.add_row(metric, *(cell.replace(" [", "\n\\[") for cell in cells))
    output.print(table)
    for name, result in results.items():
        if result.groups:
            _groups(name, result)
    if any(result.intervals for result in results.values()):
        say("in brackets: 95% intervals over identities")
    if page is not None:
        say(f"report: {page}")


def _groups(name: str, result: BenchmarkResult) -> None:
    table = Table(escape(f"{name} %"), *map(escape, result.groups))
    for metric in metric_names(next(iter(result.groups.values()))):
        cells = (figure_text(result, metric, of=figures, group=group) for group, figures in result.groups.items())
        table.add_row(metric, *(cell.replace(" [", "\n\\[") for cell in cells))
    output.print(table)


def exported(done: Exported, as_json: bool) -> None:
    """Where a model and its card are."""
    if as_json:
        files = {"model": str(done.model), "card": str(done.card), "page": str(done.page)}
        print_json({**files, "parity": done.parity})
        return
    if done.evaluation.results:
        benchmarks(done.evaluation, None, as_json)
    checked = "" if done.parity is None else f", off by {done.parity:.1e} of a vector's length in ONNX Runtime"
    say(f"model: {done.model}{checked}")
    say(f"card: {done.page}, {done.card}")


def enrolled(added: Mapping[str, int], found: Enrolment, gallery: Gallery, as_json: bool) -> None:
    """How many faces are new of whom, and what was left out."""
    left_out = {file: str(why) for file, why in found.unusable.items()}
    if as_json:
        gaps = {"left_out": left_out, "not_enrolled": found.not_enrolled, "twice": found.twice}
        print_json({"added": added, **gaps, **_plain_gallery(gallery)})
        return
    for name, faces in added.items():
        say(f"{name}: {faces} new {'face' if faces == 1 else 'faces'}")
    for name in found.not_enrolled:
        say(f"{name}: not enrolled, none of their images can be used")
    for file, why in left_out.items():
        say(f"left out: {file} ({why})")
    _gallery_line(gallery)


def people(gallery: Gallery, as_json: bool) -> None:
    if as_json:
        print_json({"people": gallery.people(), **_plain_gallery(gallery)})
        return
    table = Table("person", "faces")
    for name, faces in gallery.people().items():
        table.add_row(Text(name), str(faces))
    output.print(table)
    _gallery_line(gallery)


def matches(
    found: Mapping[str, Match],
    threshold: Threshold,
    as_json: bool,
    *,
    scores: bool = False,
    claimed: bool = False,
    unusable: Mapping[str, ImageError] | None = None,
) -> None:
    """Who is on each image, or whether they are who they `claimed` to be; the exit code says the same.

    Without `scores` the answer is all that is told: from some tens of scores a template can be computed, and whom a
    stranger is like is nobody's business. Where images are `unusable`, that is an error after the answers to all
    others.
    """
    unusable = unusable or {}
    if as_json:
        plain = {image: _plain_match(match, claimed, scores) for image, match in found.items()}
        without = {image: str(why) for image, why in unusable.items()}
        print_json({"matches": plain, "unusable": without, "threshold": dataclasses.asdict(threshold)})
    else:
        for image, match in found.items():
            score = f", score {match.score:.4f}" if scores else ""
            say(f"{image}: {_verdict(match, claimed, scores)}{score}")
        for image, why in unusable.items():
            say(f"{image}: cannot be used ({why})")
        say(f"accepted from {threshold}")
    if unusable:
        raise DataError(complaint(unusable, len(found) + len(unusable)))
    if not all(match.accepted for match in found.values()):
        raise typer.Exit(NO_MATCH)


def _plain_match(match: Match, claimed: bool, scores: bool) -> dict[str, Any]:
    if scores:
        return {**dataclasses.asdict(match), "accepted": match.accepted}
    return {"name": match.name if match.accepted or claimed else None, "accepted": match.accepted}


def _verdict(match: Match, claimed: bool, scores: bool) -> str:
    if claimed:
        person = match.name or "the same person"
        return person if match.accepted else f"not {person}"
    nearest = f" (nearest is {match.name})" if scores else ""
    return str(match.name) if match.accepted else f"nobody known{nearest}"


def _gallery_line(gallery: Gallery) -> None:
    threshold = gallery.threshold
    accepts = f"accepts from {threshold}" if threshold else "has no threshold yet: give --far or --threshold"
    say(f"{gallery.path}: {counted(len(gallery.people()), 'person', 'people')}; {accepts}")


def _plain_gallery(gallery: Gallery) -> dict[str, Any]:
    threshold = gallery.threshold
    return {"gallery": str(gallery.path), "threshold": dataclasses.asdict(threshold) if threshold else None}


def clusters(found: Clusters, out: Path, as_json: bool) -> None:
    """What was found among faces, and where it is written."""
    if as_json:
        print_json({**found.summary, "out": str(out)})
        return
    counts: dict[str, object] = {"images": found.images, "clusters": found.clusters}
    counts |= {} if found.people is None else {"people": found.people}
    sizes = {name: f"{getattr(found.shape, name):g}" for name in ("smallest", "median", "largest")}
    counts |= {**sizes, "in no cluster": found.dropped, "silhouette": f"{found.shape.silhouette:.3f}"}
    figures = {name: f"{100 * value:.2f}" for name, value in (found.agreement or {}).items()}
    tables: list[Mapping[str, object]] = [counts, figures] if figures else [counts]
    for columns in tables:
        table = Table(*columns)
        table.add_row(*map(str, columns.values()))
        output.print(table)
    if found.shape.oddity:
        output.print(f"- the clusters {found.shape.oddity}; {ADVICE}", style="yellow", markup=False, soft_wrap=True)
    say(f"labels: {out / LABELS}, picture: {out / SHEET}")
