"""Making the features of two domains alike, where the images of both are in one place."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.samples import UNLABELLED, Samples

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the kernels, in units of the mean squared distance


@dataclass(frozen=True, eq=False)
class Mixture:
    """Labelled samples of a source and unlabelled ones of a target, as many of each: the smaller side repeats."""

    source: Samples
    target: Samples

    @property
    def side(self) -> int:
        return max(len(self.source), len(self.target))

    @cached_property
    def labels(self) -> Tensor:
        own = self.source.labels[torch.arange(self.side) % len(self.source)]
        return torch.cat([own, torch.full((self.side,), UNLABELLED)])

    @property
    def classes(self) -> int:
        return self.source.classes

    @property
    def identities(self) -> tuple[str, ...]:
        return self.source.identities

    def __len__(self) -> int:
        return 2 * self.side

    def images(self, positions: Tensor) -> Tensor:
        here = positions < self.side
        own = self.source.images(positions[here] % len(self.source))
        other = self.target.images((positions[~here] - self.side) % len(self.target))
        found = own.new_empty((len(positions), *own.shape[1:]))
        found[here], found[~here] = own, other
        return found


def mmd(features: Tensor, labelled: Tensor, widths: Sequence[float] = WIDTHS) -> Tensor:
    """The squared maximum mean discrepancy of the rows where `labelled` holds and of the others.

    The mean over source pairs plus the mean over target pairs less twice the mean over mixed pairs of a kernel, itself
    the mean of Gaussians exp(-|x - y|^2 / (w s)), with s the batch's mean squared distance, held fixed. Rows of one
    side alone have no discrepancy.
    """
    source, target = labelled.to(features.dtype), (~labelled).to(features.dtype)
    shares = source / source.sum().clamp(min=1) - target / target.sum().clamp(min=1)
    squared = (features[:, None] - features[None]).square().sum(2)
    mean = squared.detach().sum() / max(1, len(features) * (len(features) - 1))
    unit = mean.clamp(min=torch.finfo(features.dtype).tiny)
    kernel = torch.stack([torch.exp(-squared / (width * unit)) for width in widths]).mean(0)
    return (shares @ kernel @ shares) * (labelled.any() & ~labelled.all())


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * slopes[0], None


def reverse(features: Tensor, strength: float) -> Tensor:
    """The features as they are; their gradient turned around, times `strength` (Ganin et al., Eq. 19)."""
    reversed_: Tensor = _Reverse.apply(features, strength)  # type: ignore[no-untyped-call]
    return reversed_


def discriminator(inputs: int, hidden: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The weights of a network with one hidden layer that tells domains apart."""
    return {
        "inner": torch.randn(hidden, inputs, generator=generator) / inputs**0.5,
        "inner_bias": torch.zeros(hidden),
        "outer": torch.randn(1, hidden, generator=generator) / hidden**0.5,
        "outer_bias": torch.zeros(1),
    }


def domain_loss(features: Tensor, labelled: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The cross-entropy of telling source (labelled) from target by the features; the weights are a discriminator's."""
    inner, inner_bias, outer, outer_bias = weights
    hidden = F.relu(F.linear(features, inner, inner_bias))
    logits = F.linear(hidden, outer, outer_bias)[:, 0]
    return F.binary_cross_entropy_with_logits(logits, labelled.to(logits.dtype))
