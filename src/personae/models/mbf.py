"""The wider MobileFaceNet that InsightFace trains as `mbf`, under its names, so that its checkpoints load."""

from typing import Any

from torch import Tensor, nn

from personae.models.mobilefacenet import initialise

__all__ = ["MBF", "initialise"]


class Layers(nn.Module):
    """One after the other, under the name `layers`."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = self.layers(maps)
        return result


class Residual(Layers):
    def forward(self, maps: Tensor) -> Tensor:
        return maps + super().forward(maps)


class MBF(nn.Module):
    """As MobileFaceNet, but with 128 and 256 channels between the bottlenecks, which mostly do not expand them."""

    def __init__(self, embedding: int, height: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            convolution(3, 128, 3, stride=2, padding=1),
            convolution(128, 128, 3, padding=1, groups=64),
            bottleneck(128, 128, 128, stride=2),
            Layers(*(bottleneck(128, 128, 128, kind=Residual) for _ in range(4))),
            bottleneck(128, 256, 256, stride=2),
            Layers(*(bottleneck(256, 256, 256, kind=Residual) for _ in range(6))),
            bottleneck(256, 512, 256, stride=2),
            Layers(*(bottleneck(256, 256, 256, kind=Residual) for _ in range(2))),
        )
        self.conv_sep = convolution(256, 512, 1)
        self.features = Layers(
            projection(512, 512, (height, width), groups=512),
            nn.Flatten(),
            nn.Linear(512, embedding, bias=False),
            nn.BatchNorm1d(embedding),
        )

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.features(self.conv_sep(self.layers(images)))
        return embeddings


def convolution(channels: int, wider: int, kernel: int, **options: Any) -> Layers:
    return Layers(nn.Conv2d(channels, wider, kernel, bias=False, **options), nn.BatchNorm2d(wider), nn.PReLU(wider))


def projection(channels: int, wider: int, kernel: int | tuple[int, int], groups: int = 1) -> Layers:
    return Layers(nn.Conv2d(channels, wider, kernel, groups=groups, bias=False), nn.BatchNorm2d(wider))


def bottleneck(channels: int, expanded: int, projected: int, stride: int = 1, kind: type[Layers] = Layers) -> Layers:
    """A 1x1, a 3x3 that filters each channel, and a 1x1 without activation."""
    return kind(
        convolution(channels, expanded, 1),
        convolution(expanded, expanded, 3, stride=stride, padding=1, groups=expanded),
        projection(expanded, projected, 1),
    )
