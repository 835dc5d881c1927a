"""A small residual network for experiments on a CPU."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64, 96)

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(8, channels),
}


class Small(nn.Module):
    """Four halvings of the image, one residual step after each of the last three, one linear layer.

    About 0.3 million parameters at 64x64 with 64-dimensional embeddings. `norm="group"` replaces the statistics of a
    batch by those of each image: a client with a single identity would otherwise normalise that identity away.
    """

    def __init__(self, embedding: int, height: int, width: int, norm: str = "batch") -> None:
        super().__init__()
        make_norm = NORMS[norm]
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTHS[0], 3, stride=2, padding=1, bias=False), make_norm(WIDTHS[0]), nn.PReLU(WIDTHS[0])
        )
        self.stages = nn.Sequential(*(Stage(wide, wider, make_norm) for wide, wider in pairwise(WIDTHS)))
        self.fc = nn.Linear(WIDTHS[-1] * height * width, embedding)
        # Centred embeddings spread over the sphere; the statistics of one image have nothing to centre them with.
        self.features = nn.BatchNorm1d(embedding) if norm == "batch" else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stages(self.stem(images))
        embeddings: Tensor = self.features(self.fc(maps.flatten(1)))
        return embeddings


class Stage(nn.Module):
    """A convolution that halves the map, then one residual convolution."""

    def __init__(self, channels: int, wider: int, make_norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.halve = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False), make_norm(wider), nn.PReLU(wider)
        )
        self.refine = nn.Sequential(nn.Conv2d(wider, wider, 3, padding=1, bias=False), make_norm(wider))
        self.prelu = nn.PReLU(wider)

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.halve(maps)
        refined: Tensor = self.prelu(maps + self.refine(maps))
        return refined


def initialise(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
