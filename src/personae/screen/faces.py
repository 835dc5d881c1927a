"""Faces: who holds them, what is odd about them, what was packed or aligned."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from personae.console import output
from personae.data.inspection import Inspection
from personae.screen.basics import SHOWN, listed, print_json, say, size_text
from personae.words import counted

if TYPE_CHECKING:
    from personae.data.aligned import Alignment
    from personae.data.faces import FaceSet
    from personae.data.holdings import Holding


def holdings(summary: "Sequence[Holding]", picture: Path, as_json: bool) -> None:
    """Who holds what."""
    if as_json:
        print_json([dataclasses.asdict(holding) for holding in summary])
        return
    table = Table("client", "identities", "train", "val", "test")
    for holding in summary:
        name = f"{holding.client} (new)" if holding.new else holding.client
        identities = str(holding.identities) if holding.identities else "unlabelled"
        table.add_row(name, identities, *map(str, (holding.train, holding.val, holding.test)))
    output.print(table)
    say(f"picture: {picture}")


def inspection(found: Inspection, as_json: bool) -> None:
    """What a set of faces is, and what is odd about it."""
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    say(f"{found.path}: {found.layout}")
    say(
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
        say(f"{span:>14} {count:>8,} {'#' * round(40 * count / largest)}")
    common = [f"{size} ({count:,})" for size, count in found.sizes.items()]
    say(f"sizes: {listed(common, 'sizes', 5)}")
    if found.attributes:
        say(f"attributes: {len(found.attributes)}: {', '.join(found.attributes)}")
    for name, values in (("domains", found.domains), ("splits", found.splits)):
        if values:
            say(f"{name}: {listed([f'{value} ({count:,})' for value, count in values.items()], name)}")
    if found.turned:
        say(f"photographs that their camera says to turn: {found.turned:,}")
    for fault in found.faults[:SHOWN]:
        output.print(f"- to be put right first: {fault}", style="red", markup=False, soft_wrap=True)
    if len(found.faults) > SHOWN:
        output.print(f"- and {len(found.faults) - SHOWN:,} more to be put right", style="red")
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
            say(f"{title}: {listed(items, 'more')}")
    if found.advice:
        say(f"{found.advice.because}:")
        for command in found.advice.commands:
            say(f"  {command}")


def packed(faces: "FaceSet", file: Path, as_json: bool) -> None:
    """What was packed, and where it is."""
    size = file.stat().st_size
    height, width = faces.size
    counts = {"images": len(faces), "identities": len(faces.identities), "unreadable": faces.unreadable}
    if as_json:
        print_json({"file": str(file), "bytes": size, "height": height, "width": width, **counts})
        return
    left_out = f" ({faces.unreadable} could not be used)" if faces.unreadable else ""
    people = f"of {counted(len(faces.identities), 'identity')}" if faces.identities else "without labels"
    say(f"{file}: {counted(len(faces), 'image')}{left_out} {people}, {size_text(size)}")
    unlabelled = "" if faces.identities else " and unlabelled = true"
    say(f'in an experiment: source = "{file}"{unlabelled} with a network of {width} x {height}')


def aligned(done: "Alignment", folder: Path, as_json: bool) -> None:
    """How many faces were aligned, and which were not."""
    from personae.data.aligned import MISSES

    if as_json:
        print_json({"folder": str(folder), **dataclasses.asdict(done)})
        return
    before = f", {done.resumed:,} of them before" if done.resumed else ""
    say(f"{folder}: {done.aligned:,} of {counted(done.images, 'image')} aligned{before}")
    if done.second_look:
        say(f"{counted(done.second_look, 'face was', 'faces were')} found only with a margin around the image")
    if done.misses:
        missed = listed([f"{path} ({why})" for path, why in done.misses], "more")
        output.print(f"- {len(done.misses):,} left out: {missed}", style="yellow", markup=False, soft_wrap=True)
        say(f"all of them: {folder / MISSES}")
