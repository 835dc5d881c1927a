"""What can be said of clusters without knowing who is on the images: how many, how large, how far apart."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.parts.clustering.methods import NOBODY

PREFIX = "clusters/"  # of the names under which these figures leave a client
FEW, CROWD, MOST = 5, 1 / 3, 1 / 2  # measured in docs/methods/unsupervised.md
ENOUGH = 4 * FEW  # images, before anything is odd about them
_BLOCK = 8192


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Figures of one client's clusters; none of them is about a single image."""

    count: float
    smallest: float = 0.0
    median: float = 0.0
    largest: float = 0.0
    outside: float
    """The share of the images that are in no cluster."""
    in_largest: float = 0.0
    """The share of the images that are in the largest cluster."""
    silhouette: float = 0.0
    """Of the images in clusters, by cosine distances (Rousseeuw); 0 where there are fewer than two clusters."""

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> Self:
        """`features` [N, D] and the cluster of each, or NOBODY."""
        unit = F.normalize(features.double(), dim=1)
        sizes = torch.bincount(labels[labels != NOBODY])
        return cls(
            count=float(len(sizes)),
            smallest=float(sizes.min()) if len(sizes) else 0.0,
            median=float(sizes.double().quantile(0.5)) if len(sizes) else 0.0,
            largest=float(sizes.max()) if len(sizes) else 0.0,
            outside=float((labels == NOBODY).double().mean()),
            in_largest=float(sizes.max()) / len(labels) if len(sizes) else 0.0,
            silhouette=silhouette(unit, labels),
        )

    @property
    def oddity(self) -> str | None:
        """Why these are hardly the people on the images, in words; None where nothing is odd."""
        if self.outside > MOST:
            return f"look shattered: {self.outside:.0%} of the images are in no cluster"
        if self.largest < ENOUGH * self.in_largest:  # what a client sends may be any numbers: nothing is divided
            return None
        sizes = f"{self.count:.0f} clusters of {self.smallest:.0f} to {self.largest:.0f} images"
        if self.median < 2:
            return f"look shattered: {sizes}, most of one image alone"
        if self.count == 1:
            return f"look collapsed: there is one, of {self.largest:.0f} images"
        if self.count < FEW or self.in_largest > CROWD:
            return f"look collapsed: {sizes}, the largest with {self.in_largest:.0%} of all"
        return None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Under which these figures leave a client."""
        return tuple(PREFIX + name for name in cls.__dataclass_fields__)

    def figures(self) -> dict[str, float]:
        return dict(zip(self.names(), asdict(self).values(), strict=True))

    @classmethod
    def read(cls, figures: Mapping[str, float]) -> Self | None:
        """From figures that a client sent; None where there are none of clusters."""
        known = {name: figures[PREFIX + name] for name in cls.__dataclass_fields__ if PREFIX + name in figures}
        return cls(**known) if len(known) == len(cls.__dataclass_fields__) else None


def silhouette(features: Tensor, labels: Tensor) -> float:
    """The mean over all images that are in a cluster, exact, of features of length one.

    The mean cosine of an image with a cluster is its product with the cluster's mean. So no table of all pairs is
    needed, and memory grows with the number of clusters.
    """
    chosen = (labels != NOBODY).nonzero()[:, 0]
    sizes = torch.bincount(labels[chosen]).to(features.dtype)
    if len(sizes) < 2:
        return 0.0
    sums = features.new_zeros(len(sizes), features.shape[1]).index_add_(0, labels[chosen], features[chosen])
    total = 0.0
    for start in range(0, len(chosen), _BLOCK):
        part = chosen[start : start + _BLOCK]
        own = labels[part]
        products = features[part] @ sums.T
        rest = (sizes[own] - 1).clamp(min=1)
        within = 1 - (products.gather(1, own[:, None])[:, 0] - 1) / rest
        others = (1 - products / sizes).scatter(1, own[:, None], torch.inf)
        between = others.min(1).values
        score = (between - within) / torch.maximum(between, within).clamp(min=1e-12)
        total += float(score[sizes[own] > 1].sum())
    return total / len(chosen)
