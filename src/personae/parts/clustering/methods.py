"""Ways to divide faces by identity, behind one call: features in, a label for every image out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.bounds import Bounded, PositiveFloat, PositiveInt, at_least
from personae.parts.clustering.finch import Centroids, by_first_member, finch
from personae.parts.clustering.neighbours import Metric, Search

NOBODY = -1  # the label of an image that belongs to no cluster


@dataclass(frozen=True, kw_only=True)
class Clustering(Bounded, ABC):
    """Divides features [N, D], scaled to length one, into clusters; -1 marks images of none."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __call__(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """int64 [N]. Clusters are numbered in the order of their first images."""
        unit = F.normalize(features.double(), dim=1)
        return self.divide(unit, generator) if len(unit) > 1 else torch.zeros(len(unit), dtype=torch.int64)

    @abstractmethod
    def divide(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """The same, of features in float64 and of two images at least."""


@dataclass(frozen=True, kw_only=True)
class CFinch(Clustering):
    """FINCH in which only first neighbours nearer than a bound are linked, at every level."""

    name: Literal["c-finch"] = "c-finch"
    distance: PositiveFloat = 0.9  # d, the bound; the paper has 1.2 for a weak and 0.9 for a strong model
    # What d is a distance of, which the paper does not say; its values fit the Euclidean distance of features of length
    # one. Cosine takes it as 1 - cos.
    metric: Metric = "euclidean"
    # What stands for a cluster: the mean of its images scaled to length one, or the mean as it is, as in FINCH. The
    # mean of many images is short, and short ones are near to each other whatever they show, so that under a bound on
    # the Euclidean distance nearly everybody ends up in one cluster.
    centroids: Centroids = "unit"
    # Which partition is used, which the paper does not say either: counted from the finest, 0, or backwards from the
    # coarsest, -1, where the bound lets nothing more be linked. Beyond the last, it is the last.
    level: int = -1
    search: Search = "auto"  # of first neighbours: exact, faiss (approximate), or auto: faiss above 200,000 images

    def divide(self, features: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        levels = finch(features, self.metric, bound=self.distance, centroids=self.centroids, search=self.search)
        return levels[max(min(self.level, len(levels) - 1), -len(levels))]


@dataclass(frozen=True, kw_only=True)
class Finch(Clustering):
    """FINCH as it is, without a bound.

    Nothing tells which level is the right one: the finest cuts a person with many images into several clusters, the
    coarsest has a handful of clusters.
    """

    name: Literal["finch"] = "finch"
    metric: Metric = "cosine"  # of first neighbours, as in c-finch
    centroids: Centroids = "mean"  # what stands for a cluster, as in c-finch
    level: int = 1  # which partition is used, as in c-finch
    search: Search = "auto"  # how first neighbours are found, as in c-finch

    def divide(self, features: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        levels = finch(features, self.metric, centroids=self.centroids, search=self.search)
        return levels[max(min(self.level, len(levels) - 1), -len(levels))]


@dataclass(frozen=True, kw_only=True)
class KMeans(Clustering):
    """K-means, which has to be told how many people there are."""

    name: Literal["k-means"] = "k-means"
    clusters: PositiveInt | None = None  # how many people there are; if left out, as images_each says
    # without clusters, there is one for every so many images, as clients differ in size
    images_each: Annotated[float, at_least(1)] = 10.0
    iterations: PositiveInt = 100  # at most, until nothing moves any more

    def divide(self, features: Tensor, generator: torch.Generator) -> Tensor:
        from sklearn.cluster import KMeans as Peer

        wanted = self.clusters or round(len(features) / self.images_each)
        seed = int(torch.randint(2**31, (), generator=generator))
        peer = Peer(min(max(1, wanted), len(features)), n_init=1, max_iter=self.iterations, random_state=seed)
        return _numbered(_alone(peer, features))


@dataclass(frozen=True, kw_only=True)
class DBSCAN(Clustering):
    """DBSCAN, which leaves images without enough neighbours out."""

    name: Literal["dbscan"] = "dbscan"
    radius: PositiveFloat = 0.9  # eps, a Euclidean distance
    neighbours: PositiveInt = 3  # how many images, itself included, make one dense

    def divide(self, features: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        from sklearn.cluster import DBSCAN as Peer  # noqa: N811

        return _numbered(_alone(Peer(eps=self.radius, min_samples=self.neighbours, algorithm="brute"), features))


@dataclass(frozen=True, kw_only=True)
class HDBSCAN(Clustering):
    """HDBSCAN, which finds a density of its own for each cluster and needs no radius."""

    name: Literal["hdbscan"] = "hdbscan"
    smallest: Annotated[int, at_least(2)] = 2  # images of a cluster at least
    neighbours: PositiveInt = 2  # how many images, itself included, the density of one is measured by

    def divide(self, features: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        from sklearn.cluster import HDBSCAN as Peer  # noqa: N811

        if len(features) < max(self.smallest, self.neighbours):
            return torch.full((len(features),), NOBODY)
        peer = Peer(min_cluster_size=self.smallest, min_samples=self.neighbours, algorithm="brute", copy=True)
        return _numbered(_alone(peer, features))


Method = CFinch | Finch | KMeans | DBSCAN | HDBSCAN
METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (CFinch, Finch, KMeans, DBSCAN, HDBSCAN)}


def large_enough(labels: Tensor, images: int) -> Tensor:
    """Labels of clusters of at least so many images, counted again from zero; -1 for all other images."""
    found, which, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    kept = (sizes >= images) & (found != NOBODY)
    numbers = torch.where(kept, kept.cumsum(0) - 1, NOBODY)
    return numbers[which]


def _alone(peer: Any, features: Tensor) -> Tensor:
    """With one thread: scikit-learn's threads add up in the order in which they come."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return torch.from_numpy(np.asarray(peer.fit_predict(features.float().cpu().numpy()), dtype=np.int64))


def _numbered(labels: Tensor) -> Tensor:
    """Numbered by first members; what belongs to no cluster stays so."""
    found = torch.full_like(labels, NOBODY)
    found[labels != NOBODY] = by_first_member(labels[labels != NOBODY])
    return found
