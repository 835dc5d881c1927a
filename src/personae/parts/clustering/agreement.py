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
    """Of the labels found [N] with the people that there are [N]."""
    from sklearn.metrics import normalized_mutual_info_score, pair_confusion_matrix  # a second to import

    found, true = _each_alone(labels.numpy()), people.numpy()
    (_, wrong), (missed, both) = pair_confusion_matrix(true, found).tolist()
    precision, recall = both / (both + wrong) if both + wrong else 1.0, both / (both + missed) if both + missed else 1.0
    return Agreement(
        # 2PR / (P + R), free of division by zero where no pair is right
        f_score=2 * both / (2 * both + wrong + missed) if both + wrong + missed else 1.0,
        precision=precision,
        recall=recall,
        nmi=float(normalized_mutual_info_score(true, found)),
        clusters=len(np.unique(labels[labels != NOBODY].numpy())),
        clustered=float((labels != NOBODY).double().mean()),
    )


def _each_alone(labels: Integers) -> Integers:
    alone = labels == NOBODY
    return np.where(alone, labels.max(initial=0) + np.cumsum(alone), labels)
