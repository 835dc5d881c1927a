"""The improved ResNet of ArcFace in InsightFace's layout: the `state_dict` keys are those of its published weights."""

import math

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)


class IResNet(nn.Module):
    """A stem at full resolution, four stages of `blocks[i]` blocks that each begin by halving the map, and BN-FC-BN.

    blocks = (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) 34, (3, 4, 14, 3) 50 and (3, 13, 30, 3) 100.
    """

    def __init__(self, embedding: int, height: int, width: int, *, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.prelu = nn.PReLU(WIDTHS[0])
        channels = (WIDTHS[0], *WIDTHS[:-1])
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(Block(before, after, stride=2), *(Block(after, after) for _ in range(count - 1)))
            for before, after, count in zip(channels, WIDTHS, blocks, strict=True)
        )
        self.bn2 = nn.BatchNorm2d(WIDTHS[-1])
        self.fc = nn.Linear(WIDTHS[-1] * height * width, embedding)
        self.features = nn.BatchNorm1d(embedding)
        # Every coordinate of the embedding keeps unit variance: this weight stays 1, and only the bias is learnt.
        self.features.weight.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.prelu(self.bn1(self.conv1(images)))
        maps = self.bn2(self.layer4(self.layer3(self.layer2(self.layer1(maps)))))
        embeddings: Tensor = self.features(self.fc(maps.flatten(1)))
        return embeddings


class Block(nn.Module):
    """BN-Conv-BN-PReLU-Conv-BN beside a shortcut; the stride is in the second convolution."""

    def __init__(self, channels: int, wider: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        self.prelu = nn.PReLU(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(wider)
        if stride != 1:
            self.downsample: nn.Module = nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride=stride, bias=False), nn.BatchNorm2d(wider)
            )
        else:
            self.downsample = nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        change = self.prelu(self.bn2(self.conv1(self.bn1(maps))))
        total: Tensor = self.downsample(maps) + self.bn3(self.conv2(change))
        return total


def initialise(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """N(0, 0.1²) for convolutions; the linear layer is uniform in ±1/√fan_in."""
    if isinstance(layer, nn.Conv2d):
        nn.init.normal_(layer.weight, std=0.1, generator=generator)
    else:
        bound = 1 / math.sqrt(layer.in_features)
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.zeros_(layer.bias)
