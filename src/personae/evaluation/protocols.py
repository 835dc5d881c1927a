"""Benchmarks: images and the comparisons to make among them, applied to any model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from personae.core.embedder import Embedder, embed
from personae.core.samples import Samples
from personae.errors import DataError
from personae.evaluation.bootstrap import accuracy_interval, tar_resamples
from personae.evaluation.comparisons import Crossed, Identified, identified
from personae.evaluation.curves import Curve, Histogram, sweep
from personae.evaluation.distractors import among_distractors
from personae.evaluation.fairness import group_rates
from personae.evaluation.identification import rank_one
from personae.evaluation.intervals import LEVEL, Interval, interval
from personae.evaluation.spread import spread
from personae.evaluation.templates import Roster, pool, template_identification, template_pairs
from personae.evaluation.verification import (
    Comparisons,
    OperatingPoint,
    Pairs,
    Scores,
    all_pairs,
    listed,
    operating_points,
    rate_name,
    tar_name,
    ten_fold,
)
from personae.progress import Progress, silent

FARS = (1e-1, 1e-2, 1e-3)
TEMPLATE_FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
DISTRACTOR_FPRS = (1e-6,)
RANKS = (1, 5, 10)
UNEVENNESS = ("fmr_gap", "fnmr_gap", "fmr_ratio", "fnmr_ratio", "fmr_gini", "fnmr_gini")  # of the errors of groups


@dataclass(frozen=True)
class Gaps:
    """What a benchmark is short of, and what it made do with."""

    images_left_out: int = 0
    """They could not be used, or no face was found in them."""
    pairs_left_out: int = 0
    """One of their images was left out."""
    plain_crops: int = 0
    """Images that were taken whole, since no face was found in them."""


NO_GAPS = Gaps()


@dataclass(frozen=True)
class GroupSize:
    """How many people of a group were compared, in how many pairs."""

    people: int
    genuine_pairs: int
    impostor_pairs: int


@dataclass(frozen=True)
class BenchmarkResult:
    """`dataclasses.asdict` of it is ready for JSON. Metrics are fractions between 0 and 1, but for ratios.

    Curve and histogram are missing where there are too many pairs to go through all of them.
    """

    metrics: dict[str, float]
    roc: Curve | None = None
    histogram: Histogram | None = None
    eer: float | None = None
    auc: float | None = None
    genuine_pairs: int = 0
    impostor_pairs: int = 0
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Of some metrics, over resampled identities; those of a group as `group/metric`."""
    groups: dict[str, dict[str, float]] = field(default_factory=dict)
    """The metrics of each group of people, where there are groups."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """By metric, such as `tar@1e-03`: the score from which on a pair is accepted at that false accept rate."""
    gaps: Gaps = NO_GAPS
    resampled: dict[str, list[float]] = field(default_factory=dict)
    """By metric, its value in every resample of the identities: the same resamples for every model."""
    faces: str = ""
    """Of which images these are, by their fingerprint; results of the same ones can be compared pair by pair."""
    group_sizes: dict[str, GroupSize] = field(default_factory=dict)


class EvaluationProtocol(Protocol):
    """What `evaluate` takes: sets of images, and figures of their vectors."""

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> Sequence[Samples]:
        """The sets of images to embed."""

    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult:
        """Given the vectors of each part."""


class _OnePart(ABC):
    """A benchmark of one set of images."""

    samples: Samples
    resamples: int

    @property
    def parts(self) -> Sequence[Samples]:
        return (self.samples,)

    @abstractmethod
    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult: ...

    def evaluate(self, embedder: Embedder, *, final: bool = True) -> BenchmarkResult:
        """Intervals are of the `final` model alone: they take longer than the rates."""
        evaluate = self.evaluate_vectors if final else replace(self, resamples=0).evaluate_vectors  # type: ignore[type-var]
        return evaluate(embed(embedder, self.samples))


@dataclass(frozen=True, eq=False)
class Benchmark(_OnePart):
    """Rates over all pairs of the samples, rank-1, and the 10-fold accuracy over `pairs`, where there are any."""

    name: str
    samples: Samples
    fars: tuple[float, ...] = FARS
    pairs: Pairs | None = None
    resamples: int = 0
    """Of the intervals; none without."""
    gaps: Gaps = NO_GAPS

    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult:
        (embeddings,), labels = vectors, self.samples.labels
        metrics = {} if self.pairs is None else _fold_metrics(embeddings, self.pairs)
        comparisons = all_pairs(embeddings, labels)
        points = operating_points(comparisons, self.fars)
        metrics |= _rates(points)
        gallery = first_of_each(labels)
        metrics["rank1"] = rank_one(embeddings[gallery], labels[gallery], embeddings[~gallery], labels[~gallery])
        resampled = _resampled(comparisons, self.fars, self.resamples)
        intervals = _intervals(resampled)
        if self.pairs is not None:
            intervals |= _accuracy_interval("accuracy", embeddings, self.pairs, labels, self.resamples)
        found = _result(metrics, comparisons, intervals, points, gaps=self.gaps, resampled=resampled)
        return replace(found, faces=getattr(self.samples, "fingerprint", ""))


@dataclass(frozen=True, eq=False)
class PairBenchmark(_OnePart):
    """Accuracy and rates over given pairs alone; intervals where the labels of the samples are identities."""

    name: str
    samples: Samples
    pairs: Pairs
    fars: tuple[float, ...] = FARS
    named: bool = False
    resamples: int = 0
    gaps: Gaps = NO_GAPS

    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult:
        (embeddings,) = vectors
        comparisons = listed(embeddings, self.pairs)
        points = operating_points(comparisons, self.fars)
        metrics = _fold_metrics(embeddings, self.pairs) | _rates(points)
        intervals, resampled = {}, {}
        if self.named:
            labels = self.samples.labels
            resampled = _resampled(identified(embeddings, self.pairs, labels), self.fars, self.resamples)
            intervals = _intervals(resampled)
            intervals |= _accuracy_interval("accuracy", embeddings, self.pairs, labels, self.resamples)
        return _result(metrics, comparisons, intervals, points, gaps=self.gaps, resampled=resampled)


@dataclass(frozen=True, eq=False)
class GroupBenchmark(_OnePart):
    """Groups of people with pairs of their own, as RFW has them; the labels of the samples are identities.

    Accuracy of each group in its own folds, and its errors at one threshold for all groups. Ratios are left out where
    the best group has no error: nothing is so many times as much as none.
    """

    name: str
    samples: Samples
    groups: Mapping[str, Pairs]
    fars: tuple[float, ...] = FARS
    resamples: int = 0
    gaps: Gaps = NO_GAPS

    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult:
        (embeddings,), labels = vectors, self.samples.labels
        scores = {name: identified(embeddings, pairs, labels) for name, pairs in self.groups.items()}
        groups = {name: _fold_metrics(embeddings, pairs) for name, pairs in self.groups.items()}
        accuracy = spread({name: {"accuracy": each["accuracy"]} for name, each in groups.items()})["accuracy"]
        metrics = {"accuracy": accuracy.mean, "accuracy_worst": accuracy.worst, "accuracy_gap": accuracy.gap}
        intervals: dict[str, Interval] = {}
        for name, pairs in self.groups.items():
            intervals |= _accuracy_interval(f"{name}/accuracy", embeddings, pairs, labels, self.resamples)
        for far in self.fars:
            rates = group_rates(scores, far, resamples=self.resamples)
            match, non_match = rate_name("fmr", far), rate_name("fnmr", far)
            unevenness = {rate_name(name, far): getattr(rates, name) for name in UNEVENNESS}
            metrics |= {name: value for name, value in unevenness.items() if math.isfinite(value)}
            for name, each in rates.groups.items():
                groups[name] |= {match: each.fmr, non_match: each.fnmr}
                for metric, bounds in ((match, each.fmr_interval), (non_match, each.fnmr_interval)):
                    if bounds is not None:
                        intervals[f"{name}/{metric}"] = bounds
        together = _together(list(scores.values()))
        found = _result(metrics, together, intervals, operating_points(together, self.fars), groups, self.gaps)
        return replace(found, group_sizes={name: _size(each) for name, each in scores.items()})


@dataclass(frozen=True, eq=False)
class TemplateSplit:
    """Which images make up which templates, pairs of templates for 1:1, galleries and probes for 1:N."""

    rows: Tensor
    templates: Tensor
    media: Tensor
    left: Tensor
    right: Tensor
    same: Tensor
    galleries: tuple[Roster, ...] = ()
    probes: Roster | None = None

    @property
    def subject_of(self) -> dict[int, int]:
        """The subjects of the templates that are in a gallery or a probe."""
        rosters = [*self.galleries, *([self.probes] if self.probes else [])]
        return {
            template: subject
            for roster in rosters
            for template, subject in zip(roster.templates.tolist(), roster.subjects.tolist(), strict=True)
        }


@dataclass(frozen=True, eq=False)
class TemplateBenchmark(_OnePart):
    """Templates as IJB-A, B and C have them: 1:1, and 1:N in each gallery; means over the splits."""

    name: str
    samples: Samples
    splits: tuple[TemplateSplit, ...]
    fars: tuple[float, ...] = TEMPLATE_FARS
    fpirs: tuple[float, ...] = (1e-1, 1e-2)
    ranks: tuple[int, ...] = RANKS
    resamples: int = 0

    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult:
        evaluated = [self._split(vectors[0], split) for split in self.splits]
        per_split = {str(number): metrics for number, (metrics, _, _) in enumerate(evaluated)}
        metrics = {}
        for name, over_splits in spread(per_split).items():
            metrics[name] = over_splits.mean
            if len(evaluated) > 1:
                metrics[f"{name}_std"] = over_splits.deviation
        together, intervals = (
            _together([scores for _, scores, _ in evaluated]),
            evaluated[0][2] if len(evaluated) == 1 else {},
        )
        return _result(metrics, together, intervals, operating_points(together, self.fars))

    def _split(self, embeddings: Tensor, split: TemplateSplit) -> tuple[dict[str, float], Scores, dict[str, Interval]]:
        pooled = pool(embeddings[split.rows], split.templates, split.media)
        scores = template_pairs(pooled, split.left, split.right, split.same)
        metrics = _rates(operating_points(scores, self.fars))
        if split.galleries and split.probes:
            found = template_identification(pooled, split.galleries, split.probes, self.fpirs, self.ranks)
            metrics |= {rate_name("tpir", fpir): rate for fpir, rate in found.tpir.items()}
            metrics |= {f"rank{rank}": rate for rank, rate in found.rank.items()}
        intervals = {}
        subject_of = split.subject_of
        if set(pooled.numbers.tolist()) <= subject_of.keys():
            subjects = torch.tensor([subject_of[number] for number in pooled.numbers.tolist()])
            ends = pooled.positions(split.left), pooled.positions(split.right)
            if torch.equal(subjects[ends[0]] == subjects[ends[1]], split.same):
                known = identified(pooled.vectors, Pairs(*ends, split.same), subjects)
                intervals = _intervals(_resampled(known, self.fars, self.resamples))
        return metrics, scores, intervals


@dataclass(frozen=True, eq=False)
class DistractorBenchmark:
    """People looked for among distractors, as MegaFace has it; these are images, or vectors of the same model."""

    name: str
    probes: Samples
    distractors: Samples | Tensor
    fprs: tuple[float, ...] = DISTRACTOR_FPRS
    ranks: tuple[int, ...] = (1,)
    progress: Progress = silent

    @property
    def parts(self) -> Sequence[Samples]:
        return (self.probes,) if isinstance(self.distractors, Tensor) else (self.probes, self.distractors)

    def evaluate_vectors(self, *vectors: Tensor) -> BenchmarkResult:
        probes = vectors[0]
        others = self.distractors if isinstance(self.distractors, Tensor) else vectors[1]
        if others.shape[1] != probes.shape[1]:
            raise DataError(
                f"{self.name}: the vectors of the distractors have {others.shape[1]} dimensions and those of the probes"
                f" {probes.shape[1]}; compute both with the same model"
            )
        found = among_distractors(
            probes, self.probes.labels, others, fprs=self.fprs, ranks=self.ranks, progress=self.progress
        )
        metrics = {f"rank{rank}": rate for rank, rate in found.rank.items()}
        metrics |= {tar_name(fpr): rate for fpr, rate in found.tpr.items()}
        pairs = found.searches // 2, len(probes) * found.distractors
        return BenchmarkResult(metrics, None, None, None, None, *pairs)


def _fold_metrics(vectors: Tensor, pairs: Pairs) -> dict[str, float]:
    folds = ten_fold(vectors[pairs.left], vectors[pairs.right], pairs.same, pairs.folds)
    return {"accuracy": folds.accuracy, "accuracy_std": folds.deviation}


def _rates(points: Mapping[float, OperatingPoint]) -> dict[str, float]:
    return {tar_name(far): point.tar for far, point in points.items()}


def _resampled(pairs: Crossed | Identified, fars: tuple[float, ...], resamples: int) -> dict[str, list[float]]:
    """Rates that can be resampled: of few identities, or of too many pairs to be held, there are none."""
    found: dict[str, list[float]] = {}
    for far in fars if resamples else ():
        with suppress(DataError):
            found[tar_name(far)] = tar_resamples(pairs, [far], resamples)[far]
    return found


def _intervals(resampled: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    return {metric: interval(rates, LEVEL) for metric, rates in resampled.items()}


def _accuracy_interval(name: str, vectors: Tensor, pairs: Pairs, labels: Tensor, resamples: int) -> dict[str, Interval]:
    with suppress(DataError):
        return {name: accuracy_interval(vectors, pairs, labels, resamples=resamples)} if resamples else {}
    return {}


def _size(scores: Identified) -> GroupSize:
    people = np.unique(np.concatenate([scores.genuine_of, *scores.impostor_of]))
    return GroupSize(len(people), scores.genuine_pairs, scores.impostor_pairs)


def _together(scores: Sequence[Scores]) -> Scores:
    return Scores(*(np.concatenate([getattr(each, kind) for each in scores]) for kind in ("genuine", "impostor")))


def _result(
    metrics: dict[str, float],
    comparisons: Comparisons,
    intervals: dict[str, Interval],
    points: Mapping[float, OperatingPoint],
    groups: dict[str, dict[str, float]] | None = None,
    gaps: Gaps = NO_GAPS,
    resampled: dict[str, list[float]] | None = None,
) -> BenchmarkResult:
    found = sweep(comparisons)
    return BenchmarkResult(
        metrics,
        found.roc,
        found.histogram,
        found.eer,
        found.auc,
        comparisons.genuine_pairs,
        comparisons.impostor_pairs,
        intervals,
        groups or {},
        {tar_name(far): point.threshold for far, point in points.items() if math.isfinite(point.threshold)},
        gaps,
        resampled or {},
    )


def first_of_each(labels: Tensor) -> Tensor:
    """bool [N]: whether an image is the first of its identity; these make up the gallery, and the others are probes."""
    identities, which = torch.unique(labels, return_inverse=True)
    positions = torch.arange(len(labels))
    first = torch.full((len(identities),), len(labels)).scatter_reduce_(0, which, positions, "amin")
    return positions == first[which]
