"""Results for a person, as tables, or for a script, as JSON."""

import dataclasses
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from personae.algorithms import ALGORITHMS
from personae.algorithms.others import AVAILABLE
from personae.console import output
from personae.data.aligned import MISSES, Alignment
from personae.data.faces import FaceSet
from personae.data.holdings import Holding
from personae.data.images import ImageError
from personae.data.inspection import SHOWN, Inspection
from personae.doctor import Finding
from personae.errors import NO_MATCH, ConfigError, DataError
from personae.evaluation.protocols import BenchmarkResult
from personae.evaluation.suite import Evaluation
from personae.experiment.clusters import LABELS, SHEET, Clusters
from personae.experiment.explain import nearest
from personae.experiment.forecast import Forecast
from personae.experiment.parameters import first_line, parameters
from personae.parts.pseudo import ADVICE
from personae.privacy.disclosure import crossings, markdown, warning
from personae.recognition.enrolment import Enrolment
from personae.recognition.export import Exported
from personae.recognition.faces import complaint
from personae.recognition.gallery import Gallery
from personae.recognition.recogniser import Match
from personae.recognition.threshold import Threshold
from personae.report.clusters import plain_clusters, print_clusters
from personae.report.evaluation_page import figure_rows, figure_text, metric_names
from personae.report.fairness import plain_fairness, print_fairness
from personae.report.records import read_run
from personae.report.table import comparison, print_table
from personae.report.warnings import warnings_of
from personae.reproduce.pages import COLOURS, chance, difference
from personae.reproduce.reproduce import Reproduction
from personae.words import counted


def models(run: Path, page: Path, as_json: bool) -> None:
    """The models of a run side by side, and where its report is."""
    if as_json:
        rows = [{"label": row.label, "metrics": row.metrics} for row in comparison(run)]
        judged = {"models": rows, "fairness": plain_fairness(run), "warnings": warnings_of(read_run(run))}
        judged |= {"clusters": clusters} if (clusters := plain_clusters(run)) else {}
        _print_json({"run": str(run), "report": str(page), **judged})
        return
    print_table(output, run)
    print_fairness(output, run)
    print_clusters(output, run)
    for line in warnings_of(read_run(run)):
        output.print(f"- {line}", style="yellow", markup=False, soft_wrap=True)
    _line(f"report: {page}")


def paths(made: Sequence[Path], as_json: bool) -> None:
    """Files and folders that a command has made."""
    if as_json:
        _print_json([str(path) for path in made])
        return
    for path in made:
        _line(str(path))


def recipes(summaries: Mapping[str, str], as_json: bool) -> None:
    """The recipes by name, with what each says of itself."""
    if as_json:
        _print_json(summaries)
        return
    table = Table("recipe", "", box=box.SIMPLE_HEAD)
    for name, text in summaries.items():
        table.add_row(Text(name), Text(text))
    output.print(table)
    _line("personae run RECIPE runs one; personae init RECIPE writes it as a file of your own, to edit")


def written_experiment(path: Path, command: str) -> None:
    """Where an experiment file is, and how it runs."""
    _line(f"{path}: edit it, then: personae {command} {path}")


def benchmarks(evaluation: Evaluation, page: Path | None, as_json: bool) -> None:
    """A column a benchmark, a line a metric; groups of people below."""
    results = evaluation.results
    if as_json:
        _print_json({name: dataclasses.asdict(result) for name, result in results.items()})
        return
    table = Table("%", *map(escape, results))
    for metric, *cells in figure_rows(evaluation):
        table.add_row(metric, *(cell.replace(" [", "\n\\[") for cell in cells))
    output.print(table)
    for name, result in results.items():
        if result.groups:
            _groups(name, result)
    if any(result.intervals for result in results.values()):
        _line("in brackets: 95% intervals over identities")
    if page is not None:
        _line(f"report: {page}")


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
        _print_json({**files, "parity": done.parity})
        return
    if done.evaluation.results:
        benchmarks(done.evaluation, None, as_json)
    checked = "" if done.parity is None else f", off by {done.parity:.1e} of a vector's length in ONNX Runtime"
    _line(f"model: {done.model}{checked}")
    _line(f"card: {done.page}, {done.card}")


def enrolled(added: Mapping[str, int], found: Enrolment, gallery: Gallery, as_json: bool) -> None:
    """How many faces are new of whom, and what was left out."""
    left_out = {file: str(why) for file, why in found.unusable.items()}
    if as_json:
        gaps = {"left_out": left_out, "not_enrolled": found.not_enrolled, "twice": found.twice}
        _print_json({"added": added, **gaps, **_plain_gallery(gallery)})
        return
    for name, faces in added.items():
        _line(f"{name}: {faces} new {'face' if faces == 1 else 'faces'}")
    for name in found.not_enrolled:
        _line(f"{name}: not enrolled, none of their images can be used")
    for file, why in left_out.items():
        _line(f"left out: {file} ({why})")
    _gallery_line(gallery)


def people(gallery: Gallery, as_json: bool) -> None:
    if as_json:
        _print_json({"people": gallery.people(), **_plain_gallery(gallery)})
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
    claimed: bool = False,
    unusable: Mapping[str, ImageError] | None = None,
) -> None:
    """Who is on each image, or whether they are who they `claimed` to be; the exit code says the same.

    Where images are `unusable`, that is an error after the answers to all others.
    """
    unusable = unusable or {}
    if as_json:
        plain = {image: {**dataclasses.asdict(match), "accepted": match.accepted} for image, match in found.items()}
        without = {image: str(why) for image, why in unusable.items()}
        _print_json({"matches": plain, "unusable": without, "threshold": dataclasses.asdict(threshold)})
    else:
        for image, match in found.items():
            _line(f"{image}: {_verdict(match, claimed)}, score {match.score:.4f}")
        for image, why in unusable.items():
            _line(f"{image}: cannot be used ({why})")
        _line(f"accepted from {threshold}")
    if unusable:
        raise DataError(complaint(unusable, len(found) + len(unusable)))
    if not all(match.accepted for match in found.values()):
        raise typer.Exit(NO_MATCH)


def _verdict(match: Match, claimed: bool) -> str:
    if claimed:
        person = match.name or "the same person"
        return person if match.accepted else f"not {person}"
    return str(match.name) if match.accepted else f"nobody known (nearest is {match.name})"


def _gallery_line(gallery: Gallery) -> None:
    threshold = gallery.threshold
    accepts = f"accepts from {threshold}" if threshold else "has no threshold yet: give --far or --threshold"
    _line(f"{gallery.path}: {counted(len(gallery.people()), 'person', 'people')}; {accepts}")


def _plain_gallery(gallery: Gallery) -> dict[str, Any]:
    threshold = gallery.threshold
    return {"gallery": str(gallery.path), "threshold": dataclasses.asdict(threshold) if threshold else None}


def clusters(found: Clusters, out: Path, as_json: bool) -> None:
    """What was found among faces, and where it is written."""
    if as_json:
        _print_json({**found.summary, "out": str(out)})
        return
    counts: dict[str, object] = {"images": found.images, "clusters": found.clusters}
    counts |= {} if found.people is None else {"people": found.people}
    sizes = {name: f"{getattr(found.shape, name):g}" for name in ("smallest", "median", "largest")}
    counts |= {**sizes, "in no cluster": found.dropped, "silhouette": f"{found.shape.silhouette:.3f}"}
    figures = {name: f"{100 * value:.2f}" for name, value in (found.judgement or {}).items()}
    tables: list[Mapping[str, object]] = [counts, figures] if figures else [counts]
    for columns in tables:
        table = Table(*columns)
        table.add_row(*map(str, columns.values()))
        output.print(table)
    if found.shape.oddity:
        output.print(f"- the clusters {found.shape.oddity}; {ADVICE}", style="yellow", markup=False, soft_wrap=True)
    _line(f"labels: {out / LABELS}, picture: {out / SHEET}")


def holdings(summary: Sequence[Holding], picture: Path, as_json: bool) -> None:
    """Who holds what."""
    if as_json:
        _print_json([dataclasses.asdict(holding) for holding in summary])
        return
    table = Table("client", "identities", "train", "val", "test")
    for holding in summary:
        name = f"{holding.client} (new)" if holding.new else holding.client
        identities = str(holding.identities) if holding.identities else "unlabelled"
        table.add_row(name, identities, *map(str, (holding.train, holding.val, holding.test)))
    output.print(table)
    _line(f"picture: {picture}")


def inspection(found: Inspection, as_json: bool) -> None:
    """What a set of faces is, and what is odd about it."""
    if as_json:
        _print_json(dataclasses.asdict(found))
        return
    _line(f"{found.path}: {found.layout}")
    _line(
        f"{counted(found.images, 'image')} of {counted(found.identities, 'identity')}; "
        f"{counted(found.looked_at, 'was', 'were')} looked at"
    )
    if found.per_identity:
        table = Table("images of an identity", *found.per_identity)
        table.add_row("", *(f"{value:g}" for value in found.per_identity.values()))
        output.print(table)
    largest = max((count for _, _, count in found.histogram), default=0)
    for first, last, count in found.histogram:
        span = f"{first}" if first == last else f"{first} to {last}"
        _line(f"{span:>14} {count:>8,} {'#' * round(40 * count / largest)}")
    common = [f"{size} ({count:,})" for size, count in found.sizes.items()]
    _line(f"sizes: {_first(common, 'sizes', 5)}")
    if found.attributes:
        _line(f"attributes: {len(found.attributes)}: {', '.join(found.attributes)}")
    for name, values in (("domains", found.domains), ("splits", found.splits)):
        if values:
            _line(f"{name}: {_first([f'{value} ({count:,})' for value, count in values.items()], name)}")
    if found.turned:
        _line(f"photographs that their camera says to turn: {found.turned:,}")
    for fault in found.faults:
        output.print(f"- to be put right first: {fault}", style="red", markup=False, soft_wrap=True)
    for problem in (*found.remarks, *found.problems):
        output.print(f"- {problem}", style="yellow", markup=False, soft_wrap=True)
    examples = (
        ("cannot be used", [f"{path} ({why})" for path, why in found.unreadable]),
        ("the same file", [f"{one} = {other}" for one, other in found.shared]),
        ("odd sizes", [f"{path} ({size})" for path, size in found.odd_sizes]),
        ("nearly the same", [f"{one} ~ {other} ({score:.4f})" for one, other, score in found.alike or ()]),
    )
    for title, items in examples:
        if items:
            _line(f"{title}: {_first(items, 'more')}")
    if found.advice:
        _line(f"{found.advice.because}:")
        for command in found.advice.commands:
            _line(f"  {command}")


def packed(faces: FaceSet, file: Path, as_json: bool) -> None:
    """What was packed, and where it is."""
    size = file.stat().st_size
    height, width = faces.size
    counts = {"images": len(faces), "identities": len(faces.identities), "unreadable": faces.unreadable}
    if as_json:
        _print_json({"file": str(file), "bytes": size, "height": height, "width": width, **counts})
        return
    left_out = f" ({faces.unreadable} could not be used)" if faces.unreadable else ""
    people = f"of {counted(len(faces.identities), 'identity')}" if faces.identities else "without labels"
    _line(f"{file}: {counted(len(faces), 'image')}{left_out} {people}, {_size(size)}")
    unlabelled = "" if faces.identities else " and unlabelled = true"
    _line(f'in an experiment: source = "{file}"{unlabelled} with a network of {width} x {height}')


def aligned(done: Alignment, folder: Path, as_json: bool) -> None:
    """How many faces were aligned, and which were not."""
    if as_json:
        _print_json({"folder": str(folder), **dataclasses.asdict(done)})
        return
    before = f", {done.resumed:,} of them before" if done.resumed else ""
    _line(f"{folder}: {done.aligned:,} of {counted(done.images, 'image')} aligned{before}")
    if done.second_look:
        _line(f"{counted(done.second_look, 'face was', 'faces were')} found only with a margin around the image")
    if done.misses:
        missed = _first([f"{path} ({why})" for path, why in done.misses], "more")
        output.print(f"- {len(done.misses):,} left out: {missed}", style="yellow", markup=False, soft_wrap=True)
        _line(f"all of them: {folder / MISSES}")


def algorithms(as_json: bool) -> None:
    """Every algorithm with its hyper-parameters and their defaults."""
    defaults: dict[str, dict[str, Any]] = {name: dataclasses.asdict(kind()) for name, kind in AVAILABLE.items()}  # type: ignore[call-overload]
    if as_json:
        _print_json(defaults)
        return
    for name, kind in AVAILABLE.items():
        output.print(f"[bold]{name}[/bold]: {escape(first_line(kind))}")
        for option, value in defaults[name].items():
            _line(f"  {option} = {json.dumps(value)}")
    _line("personae algorithms NAME explains the parameters of one")


def algorithm(name: str, as_json: bool) -> None:
    """One algorithm: what its file says of it, and each parameter with its type, its default and its meaning."""
    if name not in AVAILABLE:
        raise ConfigError(f"there is no algorithm {name!r}{nearest(name, AVAILABLE)}")
    kind = AVAILABLE[name]
    if as_json:
        _print_json([dataclasses.asdict(each) for each in parameters(kind)])
        return
    _line(inspect.cleandoc(sys.modules[kind.__module__].__doc__ or first_line(kind)))
    for each in parameters(kind):
        default = f"; default {json.dumps(each.default)}" if each.default is not None else ""
        _line(f"\n  {each.key}  {each.kind}{default}")
        output.print(Padding(Text(each.meaning), (0, 0, 0, 6)))


def disclosure(as_markdown: bool, as_json: bool) -> None:
    """What each algorithm lets across."""
    if as_markdown:
        typer.echo(markdown(ALGORITHMS.values()), nl=False)
        return
    crossing = crossings(AVAILABLE.values())
    if as_json:
        _print_json([dataclasses.asdict(item) for item in crossing])
        return
    table = Table("algorithm", "direction", "field", "payload")
    for item in crossing:
        table.add_row(item.algorithm, item.direction, item.field, item.payload)
    output.print(table)
    for kind in AVAILABLE.values():
        if text := warning(kind):
            _line(text)


def findings(found: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        _print_json([dataclasses.asdict(finding) for finding in found])
        return
    table = Table("", "found")
    for finding in found:
        cells = (finding.subject, "\n".join(filter(None, (finding.state, finding.advice))))
        table.add_row(*map(Text, cells), style=None if finding.good else "yellow")
    output.print(table)


def findings_of_claims(result: Reproduction, out: Path, as_json: bool) -> None:
    """One row a claim and one a comparison, and where the pages are."""
    if as_json:
        _line((out / "claims.json").read_text().rstrip())
        return
    table = Table("claim", "measured", "difference", "p", "verdict", box=box.SIMPLE_HEAD, show_lines=False)
    for finding in result.findings:
        style = COLOURS[finding.verdict]
        figures = "\n".join(f"{item.quantity.label} {item.text}" for item in finding.measured)
        name = Text(f"{finding.claim.id} {finding.claim.sentence}", style="bold")
        table.add_row(name, Text(figures), "", "", Text(finding.verdict, style=f"bold {style}"), end_section=False)
        for situation in finding.situations:
            gate = Text(f"  gate: {situation.gate.situation} ({situation.gate.condition.text})")
            state = {True: "passed", False: "not passed", None: "not measured"}[situation.passed]
            table.add_row(gate, Text(situation.text), "", "", Text(state, style="dim" if situation.passed else style))
        for part in finding.parts:
            table.add_row(
                Text(f"  {part.comparison.text}"),
                "",
                difference(part),
                chance(part),
                Text(part.verdict, style=COLOURS[part.verdict]),
            )
        table.add_section()
    output.print(table)
    _line(f"tables and plots: {out / 'claims.md'}, {out / 'claims.json'}, {out / 'plots'}")


def forecast(found: Forecast, as_json: bool) -> None:
    """What a run will take."""
    if as_json:
        _print_json(dataclasses.asdict(found))
        return
    new = f" ({found.new_clients} of them new)" if found.new_clients else ""
    unlabelled = f"; {found.unlabelled_clients} of the clients without labels" if found.unlabelled_clients else ""
    _line(f"{counted(found.clients, 'client')}{new}, {counted(found.identities, 'identity')}{unlabelled}")
    images = f"{counted(found.train_images, 'training image')} and {counted(found.test_images, 'test image')}"
    _line(f"{images}, {_size(found.pixel_bytes)} of pixels")
    _line(f"{found.parameters:,} parameters, {_size(found.model_bytes)} a model")
    _line(f"{_size(found.memory_bytes)} of memory for weights and updates; the activations of a batch come on top")
    table = Table(title="a round", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("stage", "algorithm"):
        table.add_column(name, overflow="fold")
    for name in ("rounds", "clients", "images", "down", "up"):
        table.add_column(name, justify="right", no_wrap=True)
    leaving: dict[str, list[str]] = {}
    for stage in found.stages:
        counts = map(str, (stage.rounds, stage.clients_per_round, stage.images_per_round))
        traffic = map(_size, (stage.bytes_down, stage.bytes_up))
        table.add_row(stage.name, stage.algorithm, *counts, *traffic)
        leaving.setdefault(", ".join(stage.leaves) or "nothing", []).append(stage.name)
    output.print(table)
    for kinds, stages in leaving.items():
        _line(f"leaves a client in {', '.join(stages)}: {kinds}")


def _first(items: Sequence[str], unit: str, shown: int = SHOWN) -> str:
    rest = f" and {len(items) - shown} {unit}" if len(items) > shown else ""
    return ", ".join(items[:shown]) + rest


def _line(text: str) -> None:
    output.print(text, markup=False, soft_wrap=True)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1))


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
