"""From an experiment to a finished run."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from personae.core.layout import Layout
from personae.core.payload import ModelState
from personae.data import FaceSet, Partition, Split, open_faces, synthetic_faces
from personae.data.clients import PartitionedFaces
from personae.errors import DataError
from personae.evaluation.personal import evaluate_client
from personae.evaluation.protocols import Benchmark
from personae.evaluation.verification import sample_pairs
from personae.experiment.config import SYNTHETIC, Experiment, Source
from personae.experiment.rundir import RunDirectory, environment
from personae.models import load_weights
from personae.progress import Progress, silent
from personae.report.html import write_report
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.engine import Engine, unheard
from personae.runtime.federation import Federation
from personae.runtime.inprocess import local_transport


@dataclass(frozen=True)
class Materials:
    """The faces of an experiment, read or rendered, and divided among the clients."""

    experiment: Experiment
    workers: int = 1
    progress: Progress = silent
    cache: Path | None = None

    @cached_property
    def public(self) -> FaceSet | None:
        return self._open(self.experiment.data.public)

    @cached_property
    def private(self) -> FaceSet:
        faces = self._open(self.experiment.data.private)
        assert faces is not None
        return faces

    @cached_property
    def heldout(self) -> FaceSet | None:
        return self._open(self.experiment.data.heldout)

    @cached_property
    def clients(self) -> PartitionedFaces:
        return PartitionedFaces(self.private, self.partition)

    @cached_property
    def partition(self) -> Partition:
        return self.experiment.partition.apply(self.private, self.experiment.seed)

    def benchmarks(self) -> list[Benchmark]:
        """People nobody trained on, and the clients' own people on images that were kept out of training."""
        options = self.experiment.evaluation
        found = []
        if self.heldout is not None:
            samples = self.heldout.samples()
            pairs = sample_pairs(
                samples.labels,
                folds=options.folds,
                pairs_per_fold=options.pairs_per_fold,
                seed=self.experiment.seed,
            )
            found.append(Benchmark("heldout", samples, options.fars, pairs))
        return [*found, Benchmark("private", self.clients.pooled(Split.TEST, newcomers=True), options.fars)]

    def digest(self) -> str:
        """Of everything that determines the result: a checkpoint of another digest is not this run's."""
        sets = [faces.fingerprint for faces in (self.public, self.private, self.heldout) if faces is not None]
        content = json.dumps([self.experiment.resolved(), sets], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _open(self, source: Source | None) -> FaceSet | None:
        if source is None:
            return None
        network = self.experiment.network
        if source.source != SYNTHETIC:
            faces = open_faces(
                Path(source.source),
                height=network.height,
                width=network.width,
                cache=self.cache,
                progress=self.progress,
                skip_unreadable=source.skip_unreadable,
            )
            return faces.slice_identities(source.first, source.identities, source.min_images)
        if network.height != network.width:
            raise DataError("synthetic faces are square; give the network the same height and width")
        assert source.identities is not None
        return synthetic_faces(
            identities=source.identities,
            images=source.images,
            first=source.first,
            domain=source.domain,
            seed=self.experiment.seed if source.seed is None else source.seed,
            size=network.height,
            cache=self.cache,
            progress=self.progress,
            workers=self.workers,
        )


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    workers: int = 1,
    device: str = "cpu",
    cache: Path | None = None,
    progress: Progress = silent,
    notify: Callable[[str], None] = unheard,
) -> Path:
    """Run it, or go on with it, in the folder `out`; gives the path of the report."""
    config, recipe = experiment.resolved(), experiment.recipe
    if resume:
        run = RunDirectory.reopen(out, config)
    else:
        run = RunDirectory.create(out, config, recipe, environment(device, workers))
    try:
        materials = Materials(experiment, workers, progress, cache)
        federation = Federation(
            seed=experiment.seed,
            recipe=recipe,
            network=experiment.network,
            holdings=materials.clients,
            private=out / "private",
            judge=partial(evaluate_client, fars=experiment.evaluation.client_fars),
            mirror=experiment.evaluation.mirror,
        )
        layout = federation.backbone().layout
        pools = any(stage.algorithm.pools_faces for stage in recipe)
        transport = local_transport(federation, workers, device)
        try:
            Engine(
                federation=federation,
                transport=transport,
                checkpoints=Checkpoints(out / "checkpoints", materials.digest(), recipe, layout),
                journal=run,
                scratch=out / "scratch",
                initial=_initial(experiment, layout),
                public=None if materials.public is None else materials.public.samples(),
                pooled=materials.clients.pooled(Split.TRAIN) if pools else None,
                benchmarks=materials.benchmarks(),
                firewall=experiment.firewall,
                device=device,
                threads=experiment.threads,
                progress=progress,
                notify=notify,
            ).run()
        finally:
            transport.close()
        return write_report(out)
    finally:
        run.close()


def _initial(experiment: Experiment, layout: Layout) -> ModelState | None:
    """The weights that the experiment names, as the backbone's state."""
    if experiment.weights is None:
        return None
    _, weights = load_weights(Path(experiment.weights), experiment.network)
    return ModelState(layout, layout.flatten({name: weights[name] for name in layout.names}))
