"""A benchmark: images and the comparisons to make among them, applied to any model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.core.embedder import Embedder, embed
from personae.core.samples import Samples
from personae.evaluation.curves import Curve, Histogram, sweep
from personae.evaluation.identification import rank_one
from personae.evaluation.verification import Comparisons, Pairs, all_pairs, listed, tar_at_far, tar_name, ten_fold


@dataclass(frozen=True)
class BenchmarkResult:
    """`dataclasses.asdict` of it is ready for JSON. Metrics are fractions between 0 and 1."""

    metrics: dict[str, float]
    roc: Curve
    histogram: Histogram
    eer: float
    auc: float
    genuine_pairs: int
    impostor_pairs: int


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Rates over all pairs of the samples, rank-1, and the 10-fold accuracy over `pairs`, where there are any."""

    name: str
    samples: Samples
    fars: tuple[float, ...] = (1e-1, 1e-2, 1e-3)
    pairs: Pairs | None = None

    def evaluate(self, embedder: Embedder) -> BenchmarkResult:
        vectors, labels = embed(embedder, self.samples), self.samples.labels
        metrics = {} if self.pairs is None else _fold_metrics(vectors, self.pairs)
        comparisons = all_pairs(vectors, labels)
        metrics |= _rates(comparisons, self.fars)
        gallery = first_of_each(labels)
        metrics["rank1"] = rank_one(vectors[gallery], labels[gallery], vectors[~gallery], labels[~gallery])
        return _result(metrics, comparisons)


@dataclass(frozen=True, eq=False)
class PairBenchmark:
    """Accuracy and rates over given pairs alone, as of images whose identities are not known."""

    name: str
    samples: Samples
    pairs: Pairs
    fars: tuple[float, ...] = (1e-1, 1e-2, 1e-3)

    def evaluate(self, embedder: Embedder) -> BenchmarkResult:
        vectors = embed(embedder, self.samples)
        comparisons = listed(vectors, self.pairs)
        return _result(_fold_metrics(vectors, self.pairs) | _rates(comparisons, self.fars), comparisons)


def _fold_metrics(vectors: Tensor, pairs: Pairs) -> dict[str, float]:
    folds = ten_fold(vectors[pairs.left], vectors[pairs.right], pairs.same, pairs.folds)
    return {"accuracy": folds.accuracy, "accuracy_std": folds.deviation}


def _rates(comparisons: Comparisons, fars: tuple[float, ...]) -> dict[str, float]:
    return {tar_name(far): tar for far, tar in tar_at_far(comparisons, fars).items()}


def _result(metrics: dict[str, float], comparisons: Comparisons) -> BenchmarkResult:
    found = sweep(comparisons)
    pairs = comparisons.genuine_pairs, comparisons.impostor_pairs
    return BenchmarkResult(metrics, found.roc, found.histogram, found.eer, found.auc, *pairs)


def first_of_each(labels: Tensor) -> Tensor:
    """bool [N]: whether an image is the first of its identity; these make up the gallery, and the others are probes."""
    identities, which = torch.unique(labels, return_inverse=True)
    positions = torch.arange(len(labels))
    first = torch.full((len(identities),), len(labels)).scatter_reduce_(0, which, positions, "amin")
    return positions == first[which]
