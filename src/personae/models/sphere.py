"""The plain residual CNN of SphereFace and CosFace: no normalisation layers at all."""

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)


class Sphere(nn.Module):
    """Four stages; each halves the map with a strided convolution and adds `blocks[i]` residual blocks.

    blocks = (1, 2, 4, 1) is the 20-layer network and (3, 8, 16, 3) the 64-layer one, by their convolutions: four
    strided ones and two in every block.
    """

    def __init__(self, embedding: int, height: int, width: int, *, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        channels = (3, *WIDTHS[:-1])
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(before, after, count) for before, after, count in zip(channels, WIDTHS, blocks, strict=True)
        )
        self.fc = nn.Linear(WIDTHS[-1] * height * width, embedding)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.layer4(self.layer3(self.layer2(self.layer1(images))))
        embeddings: Tensor = self.fc(maps.flatten(1))
        return embeddings


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.prelu1 = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.prelu2 = nn.PReLU(channels)

    def forward(self, maps: Tensor) -> Tensor:
        change: Tensor = self.prelu2(self.conv2(self.prelu1(self.conv1(maps))))
        return maps + change


def _stage(channels: int, wider: int, blocks: int) -> nn.Sequential:
    halve = nn.Conv2d(channels, wider, 3, stride=2, padding=1)
    return nn.Sequential(halve, nn.PReLU(wider), *(Block(wider) for _ in range(blocks)))


def initialise(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """Xavier where there is a bias; N(0, 0.01²) inside the blocks, so that each starts close to the identity."""
    if layer.bias is None:
        nn.init.normal_(layer.weight, std=0.01, generator=generator)
    else:
        nn.init.xavier_uniform_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
