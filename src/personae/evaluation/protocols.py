"""A benchmark: images and the comparisons to make among them, applied to any model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.core.embedder import Embedder, embed
from personae.core.samples import Samples
from personae.evaluation.curves import Curve, Histogram, sweep
from personae.evaluation.identification import rank_one
from personae.evaluation.verification import Pairs, all_pairs, tar_at_far, tar_name, ten_fold


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
        metrics: dict[str, float] = {}
        if self.pairs is not None:
            folds = ten_fold(vectors[self.pairs.left], vectors[self.pairs.right], self.pairs.same)
            metrics |= {"accuracy": folds.accuracy, "accuracy_std": folds.deviation}
        pairs = all_pairs(vectors, labels)
        metrics |= {tar_name(far): tar for far, tar in tar_at_far(pairs, self.fars).items()}
        gallery = first_of_each(labels)
        metrics["rank1"] = rank_one(vectors[gallery], labels[gallery], vectors[~gallery], labels[~gallery])
        found = sweep(pairs)
        return BenchmarkResult(
            metrics, found.roc, found.histogram, found.eer, found.auc, pairs.genuine_pairs, pairs.impostor_pairs
        )


def first_of_each(labels: Tensor) -> Tensor:
    """bool [N]: whether an image is the first of its identity; these make up the gallery, and the others are probes."""
    identities, which = torch.unique(labels, return_inverse=True)
    positions = torch.arange(len(labels))
    first = torch.full((len(identities),), len(labels)).scatter_reduce_(0, which, positions, "amin")
    return positions == first[which]
