"""A small residual network for experiments on a CPU."""

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64, 96)


class Small(nn.Module):
    """Four halvings of the image, one residual step after each of the last three, one linear layer.

    About 0.3 million parameters at 64x64 with 64-dimensional embeddings.
    """

    def __init__(self, embedding: int, height: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTHS[0], 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.PReLU(WIDTHS[0])
        )
        self.stages = nn.Sequential(*(HalvingBlock(wide, wider) for wide, wider in pairwise(WIDTHS)))
        self.fc = nn.Linear(WIDTHS[-1] * height * width, embedding)
        self.features = nn.BatchNorm1d(embedding)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stages(self.stem(images))
        embeddings: Tensor = self.features(self.fc(maps.flatten(1)))
        return embeddings


class HalvingBlock(nn.Module):
    """A convolution that halves the map, then one residual convolution."""

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.halve = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wider), nn.PReLU(wider)
        )
        self.refine = nn.Sequential(nn.Conv2d(wider, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider))
        self.prelu = nn.PReLU(wider)

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.halve(maps)
        refined: Tensor = self.prelu(maps + self.refine(maps))
        return refined


def initialise(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
