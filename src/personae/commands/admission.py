"""Who takes part in a run, as its operator decides."""

from pathlib import Path
from typing import Annotated

import typer

from personae.core.events import PersonalEvaluation, TrainingRound, events
from personae.errors import ConfigError
from personae.files import read_json
from personae.runtime.excluded import Decision, Exclusions
from personae.screen.basics import say

app = typer.Typer()

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that is not finished.")]
Clients = Annotated[list[str], typer.Argument(metavar="CLIENT", help="Names of clients.")]
Reason = Annotated[str, typer.Option(help="Why; kept with the decision.")]


@app.command()
def exclude(run: RunFolder, clients: Clients, reason: Reason = "") -> None:
    """Exclude clients from a run from its next round on, and forget what is kept under their names."""
    _require_unfinished(run)
    _tell(Exclusions.of(run).decide(exclude=clients, clients=_known(run), reason=reason))


@app.command()
def include(run: RunFolder, clients: Clients, reason: Reason = "") -> None:
    """Let excluded clients take part again."""
    _require_unfinished(run)
    _tell(Exclusions.of(run).decide(include=clients, clients=_known(run), reason=reason))


def _known(run: Path) -> list[str]:
    """The clients of a run: of a network, those it was planned with; else those that its records name."""
    plan, records = run / "deployment.json", run / "metrics.jsonl"
    if plan.is_file():
        return read_json(plan, lambda known: list(known["clients"]))
    if not records.is_file():
        raise ConfigError(f"{run}: there is no run here; give the folder of a run, such as runs/quick")
    found: dict[str, None] = {}
    with records.open("rb") as lines:
        for event in events(lines, records):
            if isinstance(event, TrainingRound):
                found |= dict.fromkeys(event.participants)
            elif isinstance(event, PersonalEvaluation):
                found |= dict.fromkeys(event.clients)
    return sorted(found)


def _require_unfinished(run: Path) -> None:
    """A decision about a run without a next round would change nothing, and say that it does."""
    plan = run / "summary.json"
    stages = read_json(plan, lambda known: [str(stage["name"]) for stage in known["stages"]]) if plan.is_file() else []
    if stages and all((run / "evaluation" / f"{name}.json").is_file() for name in stages):
        raise ConfigError(
            f"{run}: this run is finished, so it has no next round; `personae forget` trains it again without a client"
        )


def _tell(decisions: list[Decision]) -> None:
    for each in decisions:
        say(f"{each.client} {'is out' if each.excluded else 'takes part again'} from the next round on")
    if not decisions:
        say("nothing changes")
