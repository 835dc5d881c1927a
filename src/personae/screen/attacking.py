"""What came of an attack."""

from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table

from personae.attacks.trial import Standing, Trial
from personae.console import output
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
    if found.attacked.ended:
        say(f"the attacked run ended: {found.attacked.ended}")
    say(f"attackers: {', '.join(found.attackers)}")
    for what, counts in found.done.items():
        each = [f"{name} in {counted(count, 'round')}" for name, count in counts.most_common()]
        say(f"{what}: {', '.join(each)}")
    if not found.done:
        say("the server noticed nothing")
    say(f"runs: {folder}")


def _cells(standing: Standing, backdoor: bool) -> list[str]:
    figures = [standing.tar, standing.accuracy, *([standing.accepted] if backdoor else [])]
    return ["-" if value is None else f"{100 * value:.1f}%" for value in figures]
