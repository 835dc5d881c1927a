"""How well a model serves a client on its own identities; `fairness` tells how evenly it serves them all."""

from collections.abc import Sequence

import torch

from personae.core.embedder import Embedder, embed
from personae.core.samples import Samples
from personae.evaluation.identification import class_means, rank_one
from personae.evaluation.personalized import AmongEverybody
from personae.evaluation.verification import all_pairs, tar_at_far, tar_name


def metric_names(fars: Sequence[float], protocols: AmongEverybody | None = None) -> tuple[str, ...]:
    """The names of all figures that `evaluate_client` may give."""
    return (*map(tar_name, fars), "rank1", *(protocols.names if protocols else ()))


def evaluate_client(
    embedder: Embedder,
    train: Samples,
    test: Samples,
    fars: Sequence[float],
    strangers: Samples | None = None,
    protocols: AmongEverybody | None = None,
) -> dict[str, float]:
    """Verification over all pairs of the client's test images, and rank-1 of these against its training images.

    With `strangers`, everybody else's test images, and `protocols`, the personalized ones too. The labels of all sets
    share one coding. The gallery holds the mean vector of each identity's training images. A metric that says nothing
    is left out: rates without a genuine or an impostor pair, rank-1 among fewer than two identities.
    """
    if not len(test):
        return {}
    probes, known = embed(embedder, test), torch.unique(train.labels)
    metrics: dict[str, float] = {}
    pairs = all_pairs(probes, test.labels)
    if pairs.genuine_pairs and pairs.impostor_pairs:
        metrics = {tar_name(far): tar for far, tar in tar_at_far(pairs, fars).items()}
    enrolled = embed(embedder, train) if len(known) else probes[:0]
    if len(known) > 1:
        gallery = class_means(enrolled, train.labels, train.classes)
        metrics["rank1"] = rank_one(gallery[known], known, probes, test.labels)
    if protocols and strangers and len(strangers):
        theirs = embed(embedder, strangers)
        metrics |= protocols.rates(enrolled, train.labels, probes, test.labels, theirs, strangers.labels)
    return metrics
