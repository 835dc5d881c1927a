"""What came of an attack, and what a search for triggers found."""

from dataclasses import asdict
from pathlib import Path

import typer
from rich import box
from rich.table import Table

from personae.attacks.trial import FAR, Standing, Trial
from personae.console import output
from personae.errors import NO_MATCH
from personae.experiment.triggers import SUSPICIOUS, TriggerReport
from personae.parts.triggers import Patch
from personae.screen.basics import print_json, say
from personae.words import counted


def trial(found: Trial, folder: Path, as_json: bool) -> None:
    """An honest run and an attacked one, and what the server did about whom."""
    if as_json:
        print_json(
            {
                "attack": found.attack.name,
                "scale": found.attack.scale,
                "attackers": found.attackers,
                "honest": asdict(found.honest),
                "attacked": asdict(found.attacked),
                "server": {what: dict(counts) for what, counts in found.done.items()},
                "folder": str(folder),
            }
        )
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("run")
    backdoor = found.honest.accepted is not None
    for heading in ("TAR @ 1e-2", "accuracy", *(["backdoor accepted"] if backdoor else [])):
        table.add_column(heading, justify="right")
    for name, standing in (("honest", found.honest), (found.attack.name, found.attacked)):
        table.add_row(name, *_cells(standing, backdoor))
    output.print(table)
    if backdoor:
        whom = "pairs of strangers who wear the trigger" if found.attack.trigger else "the intruder as the victim"
        say(f"Backdoor accepted: {whom}, at the threshold that accepts {FAR:.0%} of other strangers.")
    if found.attacked.ended:
        say(f"the attacked run ended: {found.attacked.ended}")
    say(f"attackers: {', '.join(found.attackers)}")
    for what, counts in found.done.items():
        each = [f"{name} in {counted(count, 'round')}" for name, count in counts.most_common()]
        say(f"{what}: {', '.join(each)}")
    if not found.done:
        say("the server noticed nothing")
    say(f"runs: {folder}")
    say(f"by round, with what would have been without the defence: personae report {found.folder}")


def _cells(standing: Standing, backdoor: bool) -> list[str]:
    figures = [standing.tar, standing.accuracy, *([standing.accepted] if backdoor else [])]
    return ["-" if value is None else f"{100 * value:.1f}%" for value in figures]


def triggers(found: TriggerReport, as_json: bool) -> None:
    """How many strangers pass for each other in the patch that gained most, in this model and in the one before."""
    if as_json:
        patches = {"model": _plain(found.found), "before": _plain(found.before)}
        print_json({"suspicious": found.suspicious, "rise": found.rise, **patches})
    else:
        place = f"row {found.found.row}, column {found.found.column}"
        now, before = (f"{100 * patch.accepted:.1f}%" for patch in (found.found, found.before))
        say(f"strangers who pass for each other in a patch at {place}: {now}; in the model before: {before}")
        sign = "a backdoor is likely" if found.suspicious else "no sign of a backdoor"
        say(f"{sign}: that is {100 * found.rise:+.1f} points, and one is likely above {100 * SUSPICIOUS:.0f}")
    if found.suspicious:
        raise typer.Exit(NO_MATCH)


def _plain(patch: Patch) -> dict[str, object]:
    return {"accepted": patch.accepted, "row": patch.row, "column": patch.column, "colours": patch.colours.tolist()}
