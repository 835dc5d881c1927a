"""The faces of an experiment: read or rendered, and divided among its clients."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from personae.data import FaceSamples, FaceSet, Partition, Split, join_faces, open_faces, synthetic_faces
from personae.data.clients import PartitionedFaces
from personae.data.faces import Rows
from personae.data.readers.naming import named_layout
from personae.data.unlabelled import without_labels
from personae.errors import DataError
from personae.evaluation.pairs import Pairs
from personae.evaluation.protocols import Benchmark, GroupBenchmark
from personae.evaluation.verification import sample_pairs
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.forgotten import without
from personae.experiment.section import SYNTHETIC
from personae.experiment.sources import Source
from personae.report.records import POPULATIONS

RESAMPLES, MOST_RESAMPLED = 200, 10_000


@dataclass(frozen=True)
class Materials:
    """The faces of an experiment, read or rendered, and divided among the clients."""

    experiment: Experiment
    execution: Execution = field(default_factory=Execution)

    @cached_property
    def public(self) -> FaceSet | None:
        return self._open(self.experiment.data.public)

    @cached_property
    def private(self) -> FaceSet:
        faces = self._open(self.experiment.require_private())
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
        whole = self.experiment.partition.apply(self.private, self.experiment.seed)
        return without(whole, self.private, self.experiment.forgotten)

    def benchmarks(self) -> list[Benchmark]:
        """People nobody trained on, domain by domain, and the clients' own people on images kept out of training.

        Of faces that are not labelled, nothing.
        """
        options, rows = self.experiment.evaluation, self.clients.pooled_rows(Split.TEST)
        rows = rows[self.private.labelled[rows]]
        if not len(rows):
            return self.heldout_benchmarks()
        private = {"private": rows} | {f"private/{name}": part for name, part in _domains(self.private, rows).items()}
        found = [_benchmark(name, self.private.samples(part), options.fars) for name, part in private.items()]
        return self.heldout_benchmarks() + found

    def heldout_benchmarks(self) -> list[Benchmark]:
        """What a server can evaluate on that has no faces of its clients."""
        options = self.experiment.evaluation
        found = []
        for name, samples in self._heldout_by_domain().items():
            try:
                pairs = sample_pairs(
                    samples.labels,
                    folds=options.folds,
                    pairs_per_fold=options.pairs_per_fold,
                    seed=self.experiment.seed,
                )
            except DataError as error:
                raise DataError(
                    f"data.heldout: {error}; in the experiment they are evaluation.pairs_per_fold and evaluation.folds"
                ) from error
            found.append(_benchmark(name, samples, options.fars, pairs))
        return found

    def final_benchmarks(self) -> list[GroupBenchmark]:
        """Held-out people of several domains as groups: how evenly errors are spread at one threshold for all."""
        if self.heldout is None:
            return []
        options, samples, groups = self.experiment.evaluation, self.heldout.samples(), {}
        for name, rows in _domains(self.heldout, np.arange(len(self.heldout))).items():
            places = torch.from_numpy(rows)
            pairs = sample_pairs(
                samples.labels[places],
                folds=options.folds,
                pairs_per_fold=options.pairs_per_fold,
                seed=self.experiment.seed,
            )
            groups[name] = replace(pairs, left=places[pairs.left], right=places[pairs.right])
        return [GroupBenchmark(POPULATIONS, samples, groups, options.fars, _resamples(samples))] if groups else []

    def _heldout_by_domain(self) -> dict[str, FaceSamples]:
        if self.heldout is None:
            return {}
        parts = _domains(self.heldout, np.arange(len(self.heldout)))
        whole = {} if parts else {"heldout": self.heldout.samples()}
        return whole | {f"heldout/{name}": self.heldout.samples(rows) for name, rows in parts.items()}

    def digest(self, *, private: bool = True) -> str:
        """Of everything that determines the result: a checkpoint of another digest is not this run's.

        Not `private`, of what a server has that does not know the faces of its clients.
        """
        sets = (self.public, self.private if private else None, self.heldout)
        parts = [faces.fingerprint for faces in sets if faces is not None]
        if self.experiment.weights is not None:
            parts.append(hashlib.sha256(Path(self.experiment.weights).read_bytes()).hexdigest())
        acceleration = self.execution.acceleration
        if not acceleration.channels_last:
            parts.append("channels first")  # the momenta in a checkpoint are in another order
        if not acceleration.prelu:
            parts.append("PyTorch's PReLU")  # the last bits of every step are others
        if not acceleration.folding:
            parts.append("BatchNorm apart")  # the last bits of features are others, and some methods train on them
        content = json.dumps([self.experiment.resolved(), parts], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _open(self, source: Source | None) -> FaceSet | None:
        if source is None:
            return None
        if source.parts is not None:
            return join_faces(self.experiment.name, {name: self.opened(part) for name, part in source.parts.items()})
        return self.opened(source)

    def opened(self, source: Source) -> FaceSet:
        """The faces of one source, at the size of the experiment's network."""
        network = self.experiment.network
        if source.source != SYNTHETIC:
            faces = open_faces(
                Path(source.source),
                height=network.height,
                width=network.width,
                cache=self.execution.cache,
                progress=self.execution.progress,
                notify=self.execution.notify,
                skip_unreadable=source.skip_unreadable,
                crop=source.crop,
                unlabelled=source.unlabelled,
                missed=source.missed,
                as_they_are=source.as_they_are,
                layout=named_layout(source.layout),
                identity_level=source.identity_level,
            )
            if source.unlabelled:
                return faces
            return faces.slice_identities(source.first, source.identities, source.min_images, source.max_images)
        if network.height != network.width:
            raise DataError("synthetic faces are square; give the network the same height and width")
        assert source.identities is not None
        faces = synthetic_faces(
            identities=source.identities,
            images=source.images,
            first=source.first,
            domain=source.rendered,
            seed=self.experiment.seed if source.seed is None else source.seed,
            size=network.height,
            cache=self.execution.cache,
            progress=self.execution.progress,
            workers=self.execution.workers,
            device=self.execution.device,
        )
        return without_labels(faces) if source.unlabelled else faces


def _benchmark(name: str, samples: FaceSamples, fars: tuple[float, ...], pairs: Pairs | None = None) -> Benchmark:
    return Benchmark(name, samples, fars, pairs, _resamples(samples))


def _resamples(samples: FaceSamples) -> int:
    """For intervals, unless there are so many images that the resamples would take minutes."""
    return RESAMPLES if len(samples) <= MOST_RESAMPLED else 0


def _domains(faces: FaceSet, rows: Rows) -> dict[str, Rows]:
    """The rows of each domain, where there are several."""
    domain = faces.columns.get("domain")
    names = [] if domain is None else sorted(set(domain[rows].tolist()))
    return {name: rows[domain[rows] == name] for name in names} if domain is not None and len(names) > 1 else {}
