"""From an experiment to a finished run."""

import contextlib
import json
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path

from personae.console import meter as shown_progress
from personae.console import notify as shown_notices
from personae.core.acceleration import Acceleration
from personae.core.events import Event, TrainingRound, events
from personae.data import Split
from personae.errors import ConfigError
from personae.experiment.assembly import checkpoints_of, engine_of, federation_of, initial_weights
from personae.experiment.auditing import attacks_called, audit_run
from personae.experiment.config import Experiment, load_experiment, still_without
from personae.experiment.evaluator import benchmarks_of
from personae.experiment.execution import Execution
from personae.experiment.forgotten import absent
from personae.experiment.materials import Materials
from personae.experiment.result import Callback, RunResult, StopRun
from personae.experiment.retention import write_schedule
from personae.experiment.rundir import RunDirectory, environment
from personae.files import read_json
from personae.progress import Notify, Progress, silent, unheard
from personae.report.html import write_report
from personae.report.records import read_events
from personae.runtime.engine import Engine
from personae.runtime.excluded import Exclusions
from personae.runtime.federation import Federation
from personae.runtime.inprocess import local_transport
from personae.runtime.past import Past
from personae.runtime.public import SharedFaces
from personae.runtime.recording import Recording
from personae.runtime.store import inherit, require_kept
from personae.runtime.transport import Transport
from personae.tracking import trackers as trackers_called
from personae.tracking import tracking

Connect = Callable[[Federation, int, str, Notify], Transport]


def run_experiment(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    workers: int = 1,
    device: str = "cpu",
    acceleration: Acceleration | None = None,
    cache: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | Progress = False,
    notify: Callable[[str], None] | None = None,
    trackers: Sequence[str] = (),
) -> RunResult:
    """Run an experiment, or the one in this file or recipe, in the folder `out`; gives figures, models and report.

    With `resume` a run goes on after its last completed round; where there is none yet, it begins.
    Each of the `callbacks` gets every event of a round once that is safely on disk, and may raise `StopRun`.
    `progress`: True shows it, with whatever there is to `notify`, as the command line does.
    `trackers` get its figures, besides those that the experiment names (`docs/howto/tracking.md`).
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    if isinstance(progress, bool):
        notify = notify or (shown_notices if progress else unheard)
        progress = shown_progress if progress else silent

    execution = Execution(
        workers=workers,
        device=device,
        acceleration=acceleration or Acceleration(),
        cache=None if cache is None else Path(cache),
        progress=progress,
        notify=notify or unheard,
        trackers=tuple(trackers),
    )
    return run_with_report(experiment, Path(out), execution, resume=resume, callbacks=callbacks)


def run_with_report(
    experiment: Experiment, out: Path, execution: Execution, *, resume: bool = False, callbacks: Sequence[Callback] = ()
) -> RunResult:
    def listen(event: Event) -> None:
        for callback in callbacks:
            callback(event)

    attacks_called(experiment.audit.attacks)  # that there is none of this name is said before the work
    with contextlib.suppress(StopRun):
        conduct(experiment, out, execution, resume=resume, listen=listen)
        if experiment.audit.attacks:
            audit_run(out, experiment.audit.attacks, execution=execution)
    write_report(out)
    return RunResult(out)


def conduct(
    experiment: Experiment,
    out: Path,
    execution: Execution | None = None,
    *,
    begin: Path | None = None,
    records: bool = False,
    past: Past | None = None,
    resume: bool = False,
    listen: Callable[[Event], None] = unheard,
    connect: Connect = local_transport,
) -> None:
    """Run it without a report. `connect` is how its clients are reached.

    `begin` is a finished run of all stages but the last, under the same settings as far as they matter to these: what
    it ended with is taken over to the bit, and only the last stage runs here. With `records`, it is one of any of the
    first stages under the very same settings, and what it wrote down is taken over, too: the result is that of a run
    without a beginning. `past` is what is taken over of a run that is trained again in part.
    """
    execution = execution or Execution()
    workers, device, speed = execution.workers, execution.device, execution.acceleration
    experiment.require_private()
    if resume:
        experiment = still_without(experiment, out)
    followed = trackers_called((*experiment.tracking.trackers, *execution.trackers))
    config, recipe = experiment.resolved(), experiment.recipe
    initial_weights(experiment, speed)  # if they cannot be read, no folder is begun
    where = environment(device, workers, speed)
    run = RunDirectory.open(out, config, recipe, where, resume=resume, notify=execution.notify)
    try:
        write_schedule(out, experiment.retention)
        materials = Materials(experiment, execution)
        public = None if materials.public is None else SharedFaces(materials.public.samples(), out / "public")
        federation = federation_of(
            experiment,
            materials.clients,
            out / "private",
            acceleration=speed,
            public=public,
            benchmarks=benchmarks_of(materials) if experiment.evaluation.personal_benchmarks else None,
        )
        federation = replace(federation, keep_every=experiment.checkpoints.every)
        pools = any(stage.algorithm.pools_faces for stage in recipe)
        if public:
            public.clear()  # what a run that was killed may have left behind half written
        transport = connect(federation, workers, device, execution.notify)
        if experiment.audit.rounds:
            transport = Recording(transport, out, recipe, experiment.audit.rounds)
        try:
            with tracking(followed, out, experiment.name, execution.notify) as track:
                engine = engine_of(
                    experiment,
                    federation,
                    transport,
                    run,
                    materials.digest(),
                    execution,
                    benchmarks=materials.benchmarks(),
                    final_benchmarks=materials.final_benchmarks(),
                    public=public.samples if public else None,
                    pooled=partial(materials.clients.pooled, Split.TRAIN) if pools else None,
                    listeners=(track, listen),
                    past=past,
                )
                if begin is not None and engine.checkpoints.latest() is None:
                    if records:
                        _continue(engine, run, materials, begin)
                        for event in read_events(begin):
                            track(event)
                            listen(event)
                    else:
                        _inherit(engine, begin, out)
                if past is not None and engine.checkpoints.latest() is None:
                    _take_over(past, out)
                if resume and past is None:
                    require_kept(out / "private", _kept(engine, out, absent(experiment.forgotten)))
                engine.run()
        finally:
            transport.close()
            if public:
                public.clear()
    finally:
        run.close()


def _take_over(past: Past, out: Path) -> None:
    """What clients kept in the rounds that are not trained again, and who is out of the run."""
    if past.private is not None:
        gone = [past.forgotten] if past.forgotten else []
        inherit(out / "private", past.private, past.rounds, gone)
        Exclusions.of(out).take_over(Exclusions.of(past.private.parent), gone)


def _kept(engine: Engine, out: Path, forgotten: AbstractSet[str]) -> dict[tuple[str, str], int]:
    """By client and stage, the last round that it answered in, of a run that is to go on."""
    latest = engine.checkpoints.latest()
    recipe = engine.federation.recipe
    if latest is None or (latest[0].stage, latest[0].round) == (recipe[-1].name, recipe[-1].rounds):
        return {}  # of what is finished, clients may have thrown away what they kept
    path = out / "metrics.jsonl"
    length = latest[0].journal.get("metrics", 0)  # what follows is taken back
    written = path.read_bytes()[:length] if path.exists() else b""
    rounds = (event for event in events(written.splitlines(True), path) if isinstance(event, TrainingRound))
    return {
        (client, event.stage): event.round
        for event in rounds
        for client in event.participants
        if client not in event.failed and client not in forgotten
    }


def _continue(engine: Engine, run: RunDirectory, materials: Materials, begin: Path) -> None:
    """All that a run of the first stages has left, as if it had been this run."""
    first = first_stages(materials.experiment, begin)
    digest = Materials(first, materials.execution).digest()
    inherit(run.path / "private", begin / "private")
    run.take_over(begin)
    run.position()
    engine.checkpoints.take_over(checkpoints_of(first, begin, digest, materials.execution.acceleration))


def first_stages(experiment: Experiment, run: Path) -> Experiment:
    """The experiment of a run that is the beginning of this one."""
    config = read_json(run / "config.json", dict)
    stages = experiment.stages[: len(config["stages"])]
    found = experiment.model_copy(update={"name": config["name"], "stages": stages})
    if json.loads(json.dumps(found.resolved())) != config:
        raise ConfigError(f"{run}: this run is not the beginning of {experiment.name}; choose another folder")
    return found


def _inherit(engine: Engine, begin: Path, out: Path) -> None:
    """What the server and the clients had at the end of another run."""
    inherit(out / "private", begin / "private")
    engine.checkpoints.inherit(begin / "checkpoints", engine.federation.recipe[-2])
