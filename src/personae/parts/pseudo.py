"""Faces without labels: identities found among them, as labels to train on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from personae.core.embedder import Embedder, embed
from personae.core.samples import Samples
from personae.core.warnings import Figures
from personae.errors import DataError
from personae.parts.clustering import NOBODY, Clustering, Shape, large_enough
from personae.words import counted

ADVICE = "change how far apart clusters are (`distance` of c-finch), or begin with a model that was trained longer"


def pseudo_labels(
    samples: Samples, embedder: Embedder, clustering: Clustering, min_images: int, generator: torch.Generator
) -> tuple[Tensor, Shape]:
    """int64 [N], which cluster each image is in, or -1 for none of at least `min_images` images; and their figures."""
    if not len(samples):
        raise DataError("there is no image to cluster; give every target client some")
    features = embed(embedder, samples)
    labels = large_enough(clustering(features, generator), min_images)
    return labels, Shape.of(features, labels)


def odd_clusters(figures: Figures) -> Iterator[str]:
    """Warnings that clusters are not people, client by client."""
    for client, told in figures.clients.items():
        shape = Shape.read(told)
        if shape and shape.oddity:
            yield f"the clusters of {client} {shape.oddity}; {ADVICE}"


@dataclass(frozen=True, eq=False)
class PseudoLabelled:
    """The samples that have a pseudo-label, under it; their own labels are not looked at."""

    samples: Samples
    found: Tensor

    def __post_init__(self) -> None:
        if not len(self):
            raise DataError(
                f"none of {counted(len(self.found), 'image')} is in a cluster that is large enough; "
                "let clusters be looser (a larger distance) or smaller (min_images)"
            )

    @cached_property
    def positions(self) -> Tensor:
        return (self.found != NOBODY).nonzero()[:, 0]

    @cached_property
    def labels(self) -> Tensor:
        return self.found[self.positions]

    @property
    def classes(self) -> int:
        return int(self.found.max()) + 1

    @property
    def identities(self) -> tuple[str, ...]:
        return tuple(f"cluster {number}" for number in range(self.classes))

    def __len__(self) -> int:
        return len(self.positions)

    def images(self, positions: Tensor) -> Tensor:
        return self.samples.images(self.positions.to(positions.device)[positions])
