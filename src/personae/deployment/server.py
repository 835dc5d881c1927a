"""The server's side of a run over a network: the engine of every run, with a grid as its transport."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from personae.core.holdings import ClientFaces
from personae.deployment.bells import Bells
from personae.deployment.plan import NOTICES, OUTCOME, POST, WORKING, Plan, newcomers
from personae.errors import PersonaeError
from personae.experiment.assembly import engine_of, federation_of
from personae.experiment.execution import Execution
from personae.experiment.forgotten import absent
from personae.experiment.materials import Materials
from personae.experiment.rundir import RunDirectory
from personae.files import lock, write_text
from personae.runtime.excluded import Exclusions
from personae.runtime.flower import Grid, GridTransport
from personae.runtime.memory import keep_freed_memory
from personae.runtime.post import Post
from personae.tracking import trackers, tracking

POLL = 5.0  # seconds between two looks for what the gate returns, where no bell rings


@dataclass(frozen=True)
class Absent:
    """Faces that are elsewhere: `personae.core.holdings.Holdings` of a server."""

    clients: tuple[str, ...]
    newcomers: frozenset[str]

    def of(self, client: str) -> ClientFaces:
        raise LookupError(f"the faces of {client} are with {client}")


def main(grid: Grid, config: Mapping[str, Any]) -> None:
    """Run, or go on with, the run in the folder `out`, and leave behind how it ended."""
    out = Path(str(config["out"]))
    with lock(out / WORKING):
        _conduct(grid, out)


def _conduct(grid: Grid, out: Path) -> None:
    try:
        conduct(grid, out)
    except PersonaeError as error:
        _leave(out, {"code": error.exit_code, "error": str(error)})
        raise
    except Exception as error:
        _leave(out, {"code": 1, "error": f"{type(error).__name__}: {error}"})
        raise
    _leave(out, {"code": 0, "error": ""})


def conduct(grid: Grid, out: Path) -> None:
    plan = Plan.read(out)
    experiment, conditions, coding = plan.job.parsed(), plan.conditions, plan.job.coder()
    run = RunDirectory.reopen(out, experiment.resolved())
    try:
        execution = Execution(device=conditions.device, notify=partial(_notify, out))
        if any(not stage.algorithm.federated for stage in experiment.recipe):  # it trains here, too
            keep_freed_memory()
        materials = Materials(experiment, execution)
        holdings = Absent(plan.clients, newcomers(experiment, plan.clients))
        federation = federation_of(experiment, holdings, out / "private")
        transport = GridTransport(
            federation,
            grid,
            Post(out / POST),
            deadline=conditions.deadline,
            coding=coding,
            max_bytes=conditions.max_bytes,
            told=plan.job.text().encode(),
            bells=Bells.of_the_server(out),
            poll=POLL,
        )
        benchmarks = materials.heldout_benchmarks()  # that these faces are too few is said before anybody joins
        out_of_it = Exclusions.of(out).names() | absent(experiment.forgotten)
        expected = [name for name in plan.clients if name not in out_of_it]
        for name in transport.gather(expected, conditions.wait):
            execution.notify(f"{name} has not connected; the run goes on without it until it does")
        with tracking(trackers(conditions.trackers), out, experiment.name, execution.notify) as track:
            engine_of(
                experiment,
                federation,
                transport,
                run,
                _digest(plan, materials),
                execution,
                benchmarks=benchmarks,
                final_benchmarks=materials.final_benchmarks(),
                public=materials.public.samples() if materials.public else None,
                coding=coding,
                cohorts_known=True,  # the seed is part of the experiment, which every client is sent
                listeners=(track,),
            ).run()
    finally:
        run.close()


def _digest(plan: Plan, materials: Materials) -> str:
    """Of everything that determines the result and that the server knows."""
    parts = [materials.digest(private=False), plan.job.run, *plan.clients, plan.job.coding]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _leave(out: Path, content: dict[str, Any]) -> None:
    write_text(out / OUTCOME, json.dumps(content) + "\n")


def _notify(out: Path, line: str) -> None:
    with (out / NOTICES).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
