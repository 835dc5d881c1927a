"""What evaluation and users call: faces in, comparable vectors out."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from personae.core.samples import Samples


class Embedder(Protocol):
    """Maps uint8 images [N, height, width, 3] to float32 vectors [N, D] of length one, on the CPU.

    One that works elsewhere says so with an attribute `device`, and is given images that are there already.
    """

    def __call__(self, images: Tensor) -> Tensor: ...


@runtime_checkable
class Excerpt(Protocol):
    """Samples that are some of a larger set, which has other excerpts as well."""

    whole: Samples
    places: Tensor  # int64: their positions in the whole


class Remembering:
    """An embedder that sees a set of images once, however many excerpts of it are asked for."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: list[tuple[Samples, Tensor]] = []

    @property
    def device(self) -> torch.device:
        return getattr(self._embedder, "device", torch.device("cpu"))

    def __call__(self, images: Tensor) -> Tensor:
        return self._embedder(images)

    def of(self, excerpt: Excerpt) -> Tensor:
        vectors = next((vectors for whole, vectors in self._known if whole is excerpt.whole), None)
        if vectors is None:
            vectors = embed(self._embedder, excerpt.whole)
            self._known.append((excerpt.whole, vectors))
        return vectors[excerpt.places]


def embed(embedder: Embedder, samples: Samples, batch: int = 256) -> Tensor:
    """The vectors of all samples, in their order."""
    if isinstance(embedder, Remembering) and isinstance(samples, Excerpt):
        return embedder.of(samples)
    device = getattr(embedder, "device", torch.device("cpu"))
    starts = range(0, len(samples), batch)
    parts = [torch.arange(start, min(start + batch, len(samples)), device=device) for start in starts]
    return torch.cat([embedder(samples.images(part)) for part in parts])
