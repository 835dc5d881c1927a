"""What evaluation and users call: faces in, comparable vectors out."""

from typing import Protocol

import torch
from torch import Tensor

from personae.core.samples import Samples


class Embedder(Protocol):
    """Maps uint8 images [N, height, width, 3] to float32 vectors [N, D] of length one, on the CPU.

    One that works elsewhere says so with an attribute `device`, and is given images that are there already.
    """

    def __call__(self, images: Tensor) -> Tensor: ...


def embed(embedder: Embedder, samples: Samples, batch: int = 256) -> Tensor:
    """The vectors of all samples, in their order."""
    device = getattr(embedder, "device", torch.device("cpu"))
    starts = range(0, len(samples), batch)
    parts = [torch.arange(start, min(start + batch, len(samples)), device=device) for start in starts]
    return torch.cat([embedder(samples.images(part)) for part in parts])
