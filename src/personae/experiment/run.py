"""From an experiment to a finished run."""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from personae.console import meter as shown_progress
from personae.console import notify as shown_notices
from personae.core.acceleration import Acceleration
from personae.core.events import Event
from personae.core.layout import Layout
from personae.core.payload import ModelState
from personae.data import Split
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.evaluator import benchmarks_of, evaluator_of
from personae.experiment.materials import Materials
from personae.experiment.result import Callback, RunResult, StopRun
from personae.experiment.rundir import RunDirectory, environment
from personae.models import load_weights
from personae.progress import Progress, silent, unheard
from personae.report.html import write_report
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.engine import Engine
from personae.runtime.federation import Federation
from personae.runtime.inprocess import local_transport
from personae.runtime.problems import PROBLEMS
from personae.runtime.public import SharedFaces


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
) -> RunResult:
    """Run an experiment, or the one in this file or recipe, in the folder `out`; gives figures, models and report.

    With `resume` a run goes on after its last completed round; where there is none yet, it begins.
    Each of the `callbacks` gets every event of a round once that is safely on disk, and may raise `StopRun`.
    `progress`: True shows it, with whatever there is to `notify`, as the command line does.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    if isinstance(progress, bool):
        notify = notify or (shown_notices if progress else unheard)
        progress = shown_progress if progress else silent

    def listen(event: Event) -> None:
        for callback in callbacks:
            callback(event)

    with contextlib.suppress(StopRun):
        conduct(
            experiment,
            Path(out),
            resume=resume,
            workers=workers,
            device=device,
            acceleration=acceleration,
            cache=None if cache is None else Path(cache),
            progress=progress,
            notify=notify or unheard,
            listen=listen,
        )
    write_report(Path(out))
    return RunResult(out)


def conduct(
    experiment: Experiment,
    out: Path,
    *,
    begin: Path | None = None,
    resume: bool = False,
    workers: int = 1,
    device: str = "cpu",
    acceleration: Acceleration | None = None,
    cache: Path | None = None,
    progress: Progress = silent,
    notify: Callable[[str], None] = unheard,
    listen: Callable[[Event], None] = unheard,
) -> None:
    """Run it without a report.

    `begin` is a finished run of all stages but the last, under the same settings as far as they matter to these: what
    it ended with is taken over to the bit, and only the last stage runs here.
    """
    experiment.require_private()
    config, recipe = experiment.resolved(), experiment.recipe
    speed = acceleration or Acceleration()
    layout = Layout.of(experiment.network.layout(), channels_last=speed.channels_last)
    initial = initial_weights(experiment, layout)
    run = RunDirectory.open(out, config, recipe, environment(device, workers, speed), resume=resume)
    try:
        materials = Materials(experiment, workers, progress, cache, notify)
        public = None if materials.public is None else SharedFaces(materials.public.samples(), out / "public")
        federation = federation_of(materials, out, speed, public)
        checkpoints = Checkpoints(out / "checkpoints", materials.digest(speed), recipe, layout)
        if begin is not None and checkpoints.latest() is None:
            if (begin / "private").is_dir():
                others = shutil.ignore_patterns(PROBLEMS)  # what failed there
                shutil.copytree(begin / "private", out / "private", dirs_exist_ok=True, ignore=others)
            checkpoints.inherit(begin / "checkpoints", recipe[-2])
        pools = any(stage.algorithm.pools_faces for stage in recipe)
        if public:
            public.clear()  # what a run that was killed may have left behind half written
        transport = local_transport(federation, workers, device, notify)
        try:
            Engine(
                federation=federation,
                transport=transport,
                checkpoints=checkpoints,
                journal=run,
                scratch=out / "scratch",
                initial=initial,
                public=public.samples if public else None,
                pooled=partial(materials.clients.pooled, Split.TRAIN) if pools else None,
                benchmarks=materials.benchmarks(),
                firewall=experiment.firewall,
                device=device,
                threads=experiment.threads,
                progress=progress,
                notify=notify,
                listen=listen,
            ).run()
        finally:
            transport.close()
            if public:
                public.clear()
    finally:
        run.close()


def federation_of(
    materials: Materials, run: Path, acceleration: Acceleration, public: SharedFaces | None
) -> Federation:
    """What every process of a run in the folder `run` knows."""
    experiment = materials.experiment
    return Federation(
        seed=experiment.seed,
        recipe=experiment.recipe,
        network=experiment.network,
        holdings=materials.clients,
        private=run / "private",
        evaluator=evaluator_of(experiment),
        benchmarks=benchmarks_of(materials) if experiment.evaluation.personal_benchmarks else None,
        mirror=experiment.evaluation.mirror,
        source=materials.partition.source,
        acceleration=acceleration,
        public=public,
    )


def initial_weights(experiment: Experiment, layout: Layout) -> ModelState | None:
    """The weights that the experiment names, as the backbone's state."""
    if experiment.weights is None:
        return None
    _, weights = load_weights(Path(experiment.weights), experiment.network)
    return ModelState(layout, layout.flatten({name: weights[name] for name in layout.names}))
