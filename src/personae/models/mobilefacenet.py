"""MobileFaceNet: inverted bottlenecks, and a global depthwise convolution in the place of average pooling."""

import torch
from torch import Tensor, nn


class MobileFaceNet(nn.Module):
    """A stem, three groups of residual bottlenecks with a strided one before each, a wide 1x1, the global convolution.

    The kernel of `GDC_dw` covers the whole last map (7x7 for 112x112 images), so that every place in the face has a
    weight of its own.
    """

    def __init__(self, embedding: int, height: int, width: int) -> None:
        super().__init__()
        self.conv1 = Convolution(3, 64, 3, stride=2)
        self.conv2_dw = Convolution(64, 64, 3, groups=64)
        self.conv_23 = Bottleneck(64, 128, 64, stride=2)
        self.conv_3 = Residuals(4, channels=64, expanded=128)
        self.conv_34 = Bottleneck(64, 256, 128, stride=2)
        self.conv_4 = Residuals(6, channels=128, expanded=256)
        self.conv_45 = Bottleneck(128, 512, 128, stride=2)
        self.conv_5 = Residuals(2, channels=128, expanded=256)
        self.sep = nn.Conv2d(128, 512, 1, bias=False)
        self.sep_bn = nn.BatchNorm2d(512)
        self.prelu = nn.PReLU(512)
        self.GDC_dw = nn.Conv2d(512, 512, (height, width), groups=512, bias=False)
        self.GDC_bn = nn.BatchNorm2d(512)
        self.features = nn.Conv2d(512, embedding, 1, bias=False)
        self.last_bn = nn.BatchNorm2d(embedding)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv2_dw(self.conv1(images))
        maps = self.conv_3(self.conv_23(maps))
        maps = self.conv_4(self.conv_34(maps))
        maps = self.conv_5(self.conv_45(maps))
        maps = self.prelu(self.sep_bn(self.sep(maps)))
        embeddings: Tensor = self.last_bn(self.features(self.GDC_bn(self.GDC_dw(maps))))
        return embeddings.flatten(1)


class Convolution(nn.Module):
    """Conv-BN-PReLU; `activate=False` leaves a linear projection."""

    def __init__(
        self, channels: int, wider: int, kernel: int, *, stride: int = 1, groups: int = 1, activate: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, wider, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(wider)
        self.prelu = nn.PReLU(wider) if activate else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        activated: Tensor = self.prelu(self.bn(self.conv(maps)))
        return activated


class Bottleneck(nn.Sequential):
    """Expand with a 1x1, filter each channel with a 3x3, project with a 1x1 that has no activation."""

    def __init__(self, channels: int, expanded: int, projected: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = Convolution(channels, expanded, 1)
        self.conv_dw = Convolution(expanded, expanded, 3, stride=stride, groups=expanded)
        self.project = Convolution(expanded, projected, 1, activate=False)


class Residuals(nn.Module):
    def __init__(self, count: int, *, channels: int, expanded: int) -> None:
        super().__init__()
        self.model = nn.ModuleList(Bottleneck(channels, expanded, channels) for _ in range(count))

    def forward(self, maps: Tensor) -> Tensor:
        for bottleneck in self.model:
            maps = maps + bottleneck(maps)
        return maps


def initialise(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
