"""What runs will take, before they start: images to train on, and the time these take at a speed seen before."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personae.core.layer import innermost
from personae.core.stage import Stage
from personae.experiment.config import Experiment
from personae.experiment.forecast import asked
from personae.experiment.sources import Source
from personae.parts.local_sgd import LocalSGD
from personae.parts.meta import MetaSGD
from personae.parts.public import PublicSampling
from personae.report.records import read_run
from personae.reproduce.plan import Job

# Training images a second, small network, 64x64: of five runs at a time on one H200 (bfloat16, batches of 64), and of
# one run on one core.
USUAL = {"cuda": 55_000, "cpu": 600}
PIXELS = 64 * 64
PASSES = {"hessian-free": 4, "first": 2, "exact": 4}  # of a meta step over a batch; the exact Hessian takes longer ones


def estimate(left: Sequence[Job], done: Sequence[Job], out: Path, workers: int, device: str) -> str:
    """One line: how many runs are left, and how long they will take by the speed of those done, or the usual one."""
    runs = "1 run" if len(left) == 1 else f"{len(left)} runs"
    images = sum(map(training_images, left))
    if not images:
        return f"{runs} to go"
    seen = _seen(done, out)
    usual = USUAL[device] * (1 if device == "cuda" else workers) * PIXELS / _pixels(left)
    speed, whose = (seen * workers, "of those finished here") if seen else (usual, _usual(device))
    return f"{runs} to go, {_millions(images)} training images: {_duration(images / speed)} at the speed {whose}"


def training_images(job: Job) -> int:
    """How many images pass through training, counted as often as they do, without opening the faces.

    A meta step counts every pass over a batch. Sources of unknown size count nothing. Of public faces that clients
    choose by a threshold, a tenth counts, as it should in FedFR.
    """
    return sum(stage.rounds * _in_a_round(stage, job.experiment) for stage in job.own)


def _in_a_round(stage: Stage, experiment: Experiment) -> int:
    algorithm: Any = innermost(stage.algorithm)
    data, partition = experiment.data, experiment.partition
    clients = max(1, (partition.clients or len(partition.predicates)) - partition.new_clients)
    meta, training = getattr(algorithm, "meta", None), getattr(algorithm, "training", None)
    if isinstance(meta, MetaSGD):
        return asked(stage, clients) * meta.iterations * PASSES[meta.order] * meta.batch_size
    if not isinstance(training, LocalSGD):
        return 0
    public = _size(data.public) if getattr(algorithm, "use_public_faces", False) is True else 0
    own = round(_size(data.private) * partition.train)
    if not algorithm.federated:
        return training.steps(public + own * algorithm.pools_faces) * training.batch_size
    sampling = getattr(algorithm, "sampling", None)
    chosen = public if isinstance(sampling, PublicSampling) and sampling.takes_all else public // 10
    return asked(stage, clients) * training.steps(math.ceil(own / clients) + chosen) * training.batch_size


def _size(source: Source | None) -> int:
    if source is None:
        return 0
    parts = list(source.parts.values()) if source.parts else [source]
    return sum((part.identities or 0) * (part.images or 0) for part in parts)


def _seen(done: Sequence[Job], out: Path) -> float | None:
    """Images a second of one run, over those that are finished."""
    seconds = 0.0
    for job in done:
        records = read_run(out / job.folder).records
        seconds += sum(sum(records[stage.name].seconds.values()) for stage in job.own)
    images = sum(map(training_images, done))
    return images / seconds if images and seconds else None


def _pixels(jobs: Sequence[Job]) -> float:
    networks = [job.experiment.network for job in jobs]
    return sum(network.height * network.width for network in networks) / len(networks)


def _usual(device: str) -> str:
    return "of one H200" if device == "cuda" else "of a usual core"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} million" if count >= 1e5 else f"{count:,}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return "about a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 7200 else f"about {seconds / 3600:.1f} hours"
