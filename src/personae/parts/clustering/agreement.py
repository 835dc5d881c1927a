"""How well clusters agree with the people on the images. An image of no cluster counts as a cluster of its own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from personae.parts.clustering.methods import NOBODY

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Agreement:
    """Over all pairs of images, exactly: precision, recall and their harmonic mean; mutual information; and counts."""

    f_score: float
    precision: float  # of the pairs within a cluster, how many are of one person
    recall: float  # of the pairs of one person, how many are within a cluster
    nmi: float  # mutual information, by the arithmetic mean of the entropies
    clusters: int  # identities found
    clustered: float  # share of the images that are in a cluster


def agreement(labels: Tensor, people: Tensor) -> Agreement:
    """Of the labels found [N] with the people that there are [N], from the table of how many images share both."""
    found, true = _each_alone(labels.numpy()), np.unique(people.numpy(), return_inverse=True)[1]
    _, shared = np.unique(np.stack([found, true]), axis=1, return_counts=True)
    by_cluster, by_person = np.bincount(found), np.bincount(true)
    both, within, same = _pairs(shared), _pairs(by_cluster), _pairs(by_person)
    precision, recall = both / within if within else 1.0, both / same if same else 1.0
    return Agreement(
        # 2PR / (P + R), free of division by zero where no pair is right
        f_score=2 * both / (within + same) if within + same else 1.0,
        precision=precision,
        recall=recall,
        nmi=_nmi(shared, by_cluster, by_person),
        clusters=len(np.unique(labels[labels != NOBODY].numpy())),
        clustered=float((labels != NOBODY).double().mean()),
    )


def _each_alone(labels: Integers) -> Integers:
    alone = labels == NOBODY
    distinct = np.where(alone, labels.max(initial=0) + np.cumsum(alone), labels)
    inverse: Integers = np.unique(distinct, return_inverse=True)[1]
    return inverse


def _pairs(counts: Integers) -> int:
    """Exact up to four thousand million images in one cluster."""
    return int((counts * (counts - 1) // 2).sum())


def _nmi(shared: Integers, by_cluster: Integers, by_person: Integers) -> float:
    clusters, people = _entropy(by_cluster), _entropy(by_person)
    if not clusters + people:
        return 1.0  # one cluster, one person
    # I(X; Y) = H(X) + H(Y) - H(X, Y)
    return float(2 * (clusters + people - _entropy(shared)) / (clusters + people))


def _entropy(counts: Integers) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
