"""Whose face is it? Rates by rank against a gallery of known identities, and rates where not everybody is in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.core.exact import blocks, unit, unit_on_grid
from personae.errors import DataError
from personae.evaluation.verification import false_accepts


@dataclass(frozen=True, eq=False)
class Searches:
    """Of each probe, the best score of its own identity in the gallery and of any other one; none is minus infinity.

    The rank of the own identity is one more than how many others score as high: ties count against us.
    """

    own: npt.NDArray[np.float64]
    other: npt.NDArray[np.float64]
    rank: npt.NDArray[np.int64]

    @property
    def mated(self) -> npt.NDArray[np.bool_]:
        """Whose identity is in the gallery."""
        return self.own > -np.inf

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whose own identity is strictly above every other one: ties count against us."""
        return self.own > self.other


def search(gallery: Tensor, gallery_labels: Tensor, probes: Tensor, probe_labels: Tensor) -> Searches:
    """Look every probe up (cosine). An identity may have several gallery entries; its best one counts."""
    if not len(gallery) or not len(probes):
        raise DataError(f"identification needs a gallery and probes, but there are {len(gallery)} and {len(probes)}")
    device = probes.device
    names, entry_of = torch.unique(gallery_labels.to(device), return_inverse=True)
    mine = torch.searchsorted(names, probe_labels.to(device).contiguous()).clamp_(max=len(names) - 1)
    mated = names[mine] == probe_labels.to(device)
    known, unknown = unit_on_grid(gallery.to(device)), unit_on_grid(probes)
    own, other = torch.empty(2, len(probes), dtype=torch.float64)
    rank = torch.empty(len(probes), dtype=torch.int64)
    for rows in blocks(len(probes), len(gallery)):
        scores = unknown[rows] @ known.T
        best = scores.new_full((len(scores), len(names)), -torch.inf)
        best.scatter_reduce_(1, entry_of.expand_as(scores), scores, "amax")
        column = mine[rows, None]
        of_own = best.gather(1, column).masked_fill_(~mated[rows, None], -torch.inf)
        # The own identity is none of the others.
        best.scatter_(1, column, torch.where(mated[rows, None], -torch.inf, best.gather(1, column)))
        own[rows], other[rows] = of_own.flatten().cpu(), best.amax(dim=1).cpu()
        rank[rows] = 1 + torch.count_nonzero(best >= of_own, dim=1).cpu()
    rank[~mated.cpu()] = len(names) + 1
    return Searches(own.numpy(), other.numpy(), rank.numpy())


def rank_one(gallery: Tensor, gallery_labels: Tensor, probes: Tensor, probe_labels: Tensor) -> float:
    """The fraction of probes whose own identity scores highest; one that is not in the gallery is never right."""
    right = search(gallery, gallery_labels, probes, probe_labels).right
    return int(np.count_nonzero(right)) / len(right)


def rank_rates(searches: Searches, ranks: Sequence[int]) -> dict[int, float]:
    """Closed-set identification: the share of the probes that are in the gallery whose identity is among the first."""
    mated = searches.rank[searches.mated]
    if not len(mated):
        raise DataError("rates by rank need probes that are in the gallery, and there are none")
    return {rank: int(np.count_nonzero(mated <= rank)) / len(mated) for rank in ranks}


def tpir_at_fpir(searches: Searches, fpirs: Sequence[float]) -> dict[float, float]:
    """Open-set identification: the highest true positive rate of any threshold that keeps the false positive rate.

    A probe that is not in the gallery is a false positive when its best score reaches the threshold; one that is in it
    is a true positive when its own identity is at rank 1 and reaches it. Equal scores are accepted together.
    """
    hits, strangers = np.sort(searches.own[searches.right & searches.mated]), np.sort(searches.other[~searches.mated])
    mated = int(np.count_nonzero(searches.mated))
    if not mated or not len(strangers):
        raise DataError(
            "open-set identification needs probes that are in the gallery and others that are not, but there are"
            f" {mated} and {len(strangers)}"
        )
    rates = {}
    for fpir in fpirs:
        allowed = false_accepts(fpir, len(strangers))
        # The highest stranger to be refused, and all that is not above it.
        refused = strangers[-1 - allowed] if allowed < len(strangers) else -np.inf
        rates[fpir] = int(np.count_nonzero(hits > refused)) / mated
    return rates


def class_means(embeddings: Tensor, labels: Tensor, classes: int) -> Tensor:
    """float32 [classes, D]: the mean vector of each class, scaled to length one; zeros for a class without images."""
    vectors = unit(embeddings)
    # The length of a sum does not matter once it is scaled, so nothing is divided by the number of images.
    sums = vectors.new_zeros(classes, vectors.shape[1]).index_add_(0, labels.to(vectors.device), vectors)
    return unit(sums).float()
