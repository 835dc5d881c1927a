"""The federation and the engine of a run, put together in one way wherever its clients are."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from personae.core.acceleration import Acceleration
from personae.core.events import Event
from personae.core.holdings import Holdings
from personae.core.layout import Layout
from personae.core.payload import ModelState
from personae.core.samples import Samples
from personae.data import synthetic_faces
from personae.experiment.config import Experiment
from personae.experiment.evaluator import evaluator_of, figures_of
from personae.experiment.execution import Execution
from personae.experiment.forgotten import absent
from personae.experiment.rundir import RunDirectory
from personae.models import load_weights
from personae.privacy.accountant import Accountant
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.coding import EXACT, Coding
from personae.runtime.engine import Benchmark, Engine
from personae.runtime.excluded import Exclusions
from personae.runtime.federation import Federation, ModelEvaluator
from personae.runtime.past import Past
from personae.runtime.public import SharedFaces
from personae.runtime.transport import Transport

PROVEN_ON = 96  # people: of fewer, chance makes honest updates look harmful; of more images each, it says little more
PROOF_SEED = 0x5EED_0F_FACE5  # of people who are in no experiment


def federation_of(
    experiment: Experiment,
    holdings: Holdings,
    private: Path,
    *,
    acceleration: Acceleration | None = None,
    public: SharedFaces | None = None,
    benchmarks: ModelEvaluator | None = None,
) -> Federation:
    """What every party of a run knows, with the `holdings` and the folder for private state that this one has."""
    return Federation(
        seed=experiment.seed,
        recipe=experiment.recipe,
        network=experiment.network,
        holdings=holdings,
        private=private,
        evaluator=evaluator_of(experiment),
        figures=figures_of(experiment),
        benchmarks=benchmarks,
        mirror=experiment.evaluation.mirror,
        source=experiment.partition.source or None,
        acceleration=acceleration or Acceleration(),
        public=public,
    )


def checkpoints_of(experiment: Experiment, run: Path, digest: str, acceleration: Acceleration) -> Checkpoints:
    """What a run in this folder goes on from; `digest` is of all that determines its result."""
    layout, every = layout_of(experiment, acceleration), experiment.checkpoints.every
    return Checkpoints(run / "checkpoints", digest, experiment.recipe, layout, every=every)


def engine_of(
    experiment: Experiment,
    federation: Federation,
    transport: Transport,
    run: RunDirectory,
    digest: str,
    execution: Execution,
    *,
    benchmarks: Sequence[Benchmark],
    final_benchmarks: Sequence[Benchmark],
    public: Samples | None = None,
    pooled: Callable[[Sequence[str]], Samples] | None = None,
    past: Past | None = None,
    coding: Coding = EXACT,
    cohorts_known: bool = False,
    listeners: Sequence[Callable[[Event], None]] = (),
) -> Engine:
    """The engine of a run, over any transport. `pooled` gives faces of clients, where these are here.

    `cohorts_known`: whether clients can tell who is asked, as those can who are told the seed.
    """
    return Engine(
        federation=federation,
        transport=transport,
        checkpoints=replace(
            checkpoints_of(experiment, run.path, digest, execution.acceleration), notify=execution.notify
        ),
        journal=run,
        scratch=run.path / "scratch",
        initial=initial_weights(experiment, execution.acceleration),
        public=public,
        pooled=pooled,
        benchmarks=benchmarks,
        final_benchmarks=final_benchmarks,
        firewall=experiment.firewall,
        proof=rendered_proof(experiment, execution.cache),
        excluded=Exclusions.of(run.path).names,
        absent=absent(experiment.forgotten),
        past=past,
        accountant=accountant_of(experiment, federation, cohorts_known=cohorts_known),
        coding=coding,
        device=execution.device,
        threads=experiment.threads,
        cores=execution.workers,
        progress=execution.progress,
        notify=execution.notify,
        listeners=listeners,
    )


def accountant_of(experiment: Experiment, federation: Federation, *, cohorts_known: bool = False) -> Accountant:
    """Who keeps the accounts of privacy, with the clients that train in each stage."""
    holdings, missing = federation.holdings, absent(experiment.forgotten)
    trainers = [name for name in holdings.clients if name not in holdings.newcomers]

    def counted(names: Sequence[str]) -> dict[str, int]:
        return {
            stage.name: sum(stage.takes(name == federation.source) for name in names) for stage in federation.recipe
        }

    never_asked = counted([name for name in trainers if name in missing])
    return Accountant(federation.recipe, counted(trainers), experiment.budget, cohorts_known, never_asked)


def rendered_proof(experiment: Experiment, cache: Path | None) -> Samples | None:
    """Faces of nobody, whom no experiment trains on: the server looks at models with them, and at single updates."""
    network = experiment.network
    if not experiment.firewall.enabled or network.height != network.width:
        return None
    return synthetic_faces(identities=PROVEN_ON, images=2, seed=PROOF_SEED, size=network.height, cache=cache).samples()


def initial_weights(experiment: Experiment, acceleration: Acceleration) -> ModelState | None:
    """The weights that the experiment names, as the backbone's state."""
    if experiment.weights is None:
        return None
    layout = layout_of(experiment, acceleration)
    _, weights = load_weights(Path(experiment.weights), experiment.network)
    return ModelState(layout, layout.flatten({name: weights[name] for name in layout.names}))


def layout_of(experiment: Experiment, acceleration: Acceleration) -> Layout:
    return Layout.of(experiment.network.layout(), channels_last=acceleration.channels_last)
