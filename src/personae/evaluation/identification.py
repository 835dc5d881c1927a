"""Whose face is it? Rank-1 rate against a gallery of known identities."""

import torch
from torch import Tensor

from personae.errors import DataError
from personae.evaluation.exact import blocks, unit, unit_on_grid


def rank_one(gallery: Tensor, gallery_labels: Tensor, probes: Tensor, probe_labels: Tensor) -> float:
    """The fraction of probes whose own identity scores highest (cosine) in the gallery.

    An identity may have several gallery entries; its best one counts. Ties count against us: a probe is right only when
    its identity's best score is strictly above every other identity's. One that is not in the gallery is never right.
    """
    if not len(gallery) or not len(probes):
        raise DataError(f"identification needs a gallery and probes, but there are {len(gallery)} and {len(probes)}")
    known, unknown = unit_on_grid(gallery), unit_on_grid(probes)
    right = 0
    for rows in blocks(len(probes), len(gallery)):
        scores = unknown[rows] @ known.T
        own = gallery_labels == probe_labels[rows, None]
        best_own = scores.masked_fill(~own, -torch.inf).amax(dim=1)
        best_other = scores.masked_fill(own, -torch.inf).amax(dim=1)
        right += int((best_own > best_other).sum())
    return right / len(probes)


def class_means(embeddings: Tensor, labels: Tensor, classes: int) -> Tensor:
    """float32 [classes, D]: the mean vector of each class, scaled to length one; zeros for a class without images."""
    vectors = unit(embeddings)
    # The length of a sum does not matter once it is scaled, so nothing is divided by the number of images.
    sums = torch.zeros(classes, vectors.shape[1], dtype=vectors.dtype).index_add_(0, labels, vectors)
    return unit(sums).float()
