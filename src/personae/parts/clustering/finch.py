"""FINCH (Sarfraz et al., CVPR 2019) and its conditional variant C-FINCH (Zhuang et al., Section 3.3).

Every image begins as a cluster of its own. Two clusters are linked if one is the first neighbour of the other, or if
both have the same one; in C-FINCH only where the first neighbour is nearer than a bound. What is linked, directly or
not, is one cluster at the next level, represented by the mean of its images, until nothing is linked any more.
"""

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from personae.parts.clustering.neighbours import Metric, Neighbours, Search, first_neighbours

Centroids = Literal["unit", "mean"]


def finch(
    features: Tensor,
    metric: Metric = "euclidean",
    *,
    bound: float = math.inf,
    centroids: Centroids = "mean",
    search: Search = "auto",
) -> list[Tensor]:
    """The labels of all levels [N], from the finest on; clusters are numbered in the order of their first image.

    `centroids`: the means of the images as they are, as in FINCH, or scaled to length one. Without a bound the last
    level would always be a single cluster: it is left out, unless it is the only one. Where a bound lets nothing be
    linked at all, the one level has every image by itself.
    """
    labels = torch.arange(len(features))
    points, levels = features, list[Tensor]()
    while len(points) > 1:
        merged = linked(first_neighbours(points, metric, search=search), bound)
        clusters = int(merged.max()) + 1
        if clusters == len(points) or (levels and clusters == 1 and math.isinf(bound)):
            break
        labels = merged[labels]
        levels.append(labels)
        points = means(features, labels, clusters)
        if centroids == "unit":
            points = F.normalize(points, dim=1)
    return levels or [labels]


def linked(neighbours: Neighbours, bound: float = math.inf) -> Tensor:
    """Components of the graph of first neighbours nearer than the bound.

    Clusters with the same first neighbour are both linked to it, so that the third kind of link needs no edge of its
    own: should the bound cut one of the two links, then the pair itself is no nearer than that, and out of bounds, too.
    """
    from scipy.sparse import coo_array  # takes a while to import
    from scipy.sparse.csgraph import connected_components

    near = (neighbours.distance < bound).cpu().numpy()
    count = len(near)
    edges = np.ones(int(near.sum()), dtype=bool), (np.flatnonzero(near), neighbours.index.cpu().numpy()[near])
    graph = coo_array(edges, shape=(count, count))
    return by_first_member(torch.from_numpy(connected_components(graph, directed=False)[1]))


def means(features: Tensor, labels: Tensor, clusters: int) -> Tensor:
    """float64 [clusters, D]: the mean of each cluster's images."""
    # On the CPU, where sums have an order.
    total = torch.zeros(clusters, features.shape[1], dtype=torch.float64).index_add_(0, labels, features.double().cpu())
    return (total / torch.bincount(labels, minlength=clusters)[:, None]).to(features.device)


def by_first_member(labels: Tensor) -> Tensor:
    """The same clusters, numbered in the order of their first members."""
    _, first, inverse = np.unique(labels.numpy(), return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(order[inverse])
