"""Identities from unlabelled faces: FINCH, C-FINCH, K-means, DBSCAN, HDBSCAN, and how well they find who is who."""

from personae.parts.clustering.agreement import Agreement, agreement
from personae.parts.clustering.finch import finch
from personae.parts.clustering.methods import (
    DBSCAN,
    HDBSCAN,
    METHODS,
    NOBODY,
    CFinch,
    Clustering,
    Finch,
    KMeans,
    Method,
    large_enough,
)
from personae.parts.clustering.neighbours import first_neighbours
from personae.parts.clustering.shape import Shape

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "METHODS",
    "NOBODY",
    "Agreement",
    "CFinch",
    "Clustering",
    "Finch",
    "KMeans",
    "Method",
    "Shape",
    "agreement",
    "finch",
    "first_neighbours",
    "large_enough",
]
