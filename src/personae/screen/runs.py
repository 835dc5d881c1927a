"""Runs: what came of them, what they will take, and the claims that they decide."""

import dataclasses
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from personae.console import output
from personae.experiment.forecast import Forecast
from personae.experiment.proposal import Proposal
from personae.reproduce.pages import COLOURS, chance, difference
from personae.reproduce.reproduce import Reproduction
from personae.reproduce.statistics import Verdict
from personae.screen.basics import print_json, say, size_text
from personae.screen.files import written_experiment
from personae.words import counted


def proposal(found: Proposal, to: Path | None, as_json: bool) -> None:
    """Why this experiment, its file, and how it runs."""
    if as_json:
        print_json({"why": found.why, "experiment": found.text})
        return
    if to is None:
        say(found.text)
        say("This is a proposal; the same command with --yes runs it, and with --to FILE writes it to edit.")
        return
    say(found.why)
    written_experiment(to, "run")


def findings_of_claims(result: Reproduction, out: Path, as_json: bool) -> None:
    """One row a claim and one a comparison, and where the pages are."""
    if as_json:
        say((out / "claims.json").read_text().rstrip())
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
    for verdict in Verdict:
        if found := [finding.claim.id for finding in result.findings if finding.verdict is verdict]:
            say(f"{verdict}: {', '.join(found)}")
    say(f"tables and plots: {out / 'claims.md'}, {out / 'claims.json'}, {out / 'plots'}")
    first = result.findings[0]  # the claim that leads, where it was asked for
    figures = "; ".join(f"{item.quantity.label} {item.text}" for item in first.measured)
    say(f"{first.claim.id} {first.verdict}: {first.claim.sentence} ({figures})")


def forecast(found: Forecast, as_json: bool) -> None:
    """What a run will take."""
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    new = f" ({found.new_clients} of them new)" if found.new_clients else ""
    unlabelled = f"; {found.unlabelled_clients} of the clients without labels" if found.unlabelled_clients else ""
    say(f"{counted(found.clients, 'client')}{new}, {counted(found.identities, 'identity')}{unlabelled}")
    images = f"{counted(found.train_images, 'training image')} and {counted(found.test_images, 'test image')}"
    say(f"{images}, {size_text(found.pixel_bytes)} of pixels")
    say(f"{found.parameters:,} parameters, {size_text(found.model_bytes)} per model")
    say(f"{size_text(found.memory_bytes)} of memory for weights and updates; the activations of a batch come on top")
    table = Table(title="in each round", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("stage", "algorithm"):
        table.add_column(name, overflow="fold")
    for name in ("rounds", "clients", "images", "down", "up"):
        table.add_column(name, justify="right", no_wrap=True)
    leaving: dict[str, list[str]] = {}
    seeing: dict[str, list[str]] = {}
    for stage in found.stages:
        counts = map(str, (stage.rounds, stage.clients_per_round, stage.images_per_round))
        traffic = map(size_text, (stage.bytes_down, stage.bytes_up))
        table.add_row(stage.name, stage.algorithm, *counts, *traffic)
        kinds = [f"{found.kinds[kind]} ({kind})" if kind in found.kinds else kind for kind in stage.leaves]
        leaving.setdefault(", ".join(kinds) or "nothing", []).append(stage.name)
        if stage.others_see:
            seeing.setdefault(stage.others_see, []).append(stage.name)
    output.print(table)
    for what, stages in leaving.items():
        say(f"leaves a client in {', '.join(stages)}: {what}")
    for what, stages in seeing.items():
        say(f"what clients see of each other in {', '.join(stages)}: {what}")
    for line in found.privacy or ["none"]:
        say(f"differential privacy: {line}")
