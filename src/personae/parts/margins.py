"""Margin losses over class embeddings."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.bounds import Bounded, NonNegativeFloat, PositiveFloat


@dataclass(frozen=True, kw_only=True)
class Margin(Bounded):
    """A softmax cross-entropy whose logits keep a margin at the true class.

    With x a feature, w_j the embedding of class j, y the label and θ_j the angle between x and w_j:

    - softmax: z_j = w_j·x. Nothing is normalised and there is no bias; `scale` and `margin` play no part.
    - cosface: z_j = s·(cos θ_j − m·1[j = y]).
    - arcface: z_j = s·cos(θ_j + m·1[j = y]). Where θ_y + m passes π, the cosine would rise again with the angle; there
      z_y = s·(cos θ_y − m·sin m) takes its place, the convention of the public code bases, and the logit keeps falling
      all the way to θ_y = π.

    s is `scale`; m is `margin`, a cosine in cosface and an angle in radians, at most π/2, in arcface. The gradient is
    the exact one. `straight_through` (arcface only) adds the margin to the value but not to the gradient, ∂z_y/∂cos θ_y
    = s, as several public code bases do; exact, it is s·sin(θ_y + m)/sin θ_y, which lies above s for small angles.

    The class embeddings are given as rows [C, D]: private ones, public ones, or both concatenated, with labels that
    count along the concatenation. A row of zeros has no direction and is no class: its logit is -inf. Logits are at
    least float32, under autocast too.
    """

    kind: Literal["softmax", "cosface", "arcface"] = "cosface"  # no margin, one on the cosine, or one on the angle
    scale: PositiveFloat = 30.0  # s, what cosines are multiplied by; no part of softmax
    margin: NonNegativeFloat = 0.4  # m, a cosine in cosface and an angle in radians in arcface; no part of softmax
    straight_through: bool = False  # arcface: the margin is added to the value, but not to the gradient

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.kind not in ("softmax", "cosface", "arcface"):
            raise ValueError(f"margin.kind = {self.kind!r}: there are softmax, cosface, arcface")
        super().__post_init__()
        if self.kind == "arcface" and self.margin > math.pi / 2:
            raise ValueError(f"margin.margin = {self.margin}: for arcface an angle in radians, at most π/2")
        if self.straight_through and self.kind != "arcface":
            raise ValueError(f"margin.straight_through: only for arcface, not for {self.kind}")

    @property
    def largest_loss(self) -> float:
        """What the loss of no sample exceeds: two logits as far apart as they can be, over a hundred million classes.

        Inner products have no such bound; what is taken for one is far above all that training starts from.
        """
        apart = 1e4 if self.kind == "softmax" else self.scale * (2 + self.margin)
        return apart + math.log(1e8)

    def logits(self, features: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """Logits [N, C] of features [N, D] over class embeddings `rows` [C, D], with `labels` [N] the true classes."""
        products = self._products(features, rows)
        if self.kind != "softmax":
            target = products.gather(1, labels[:, None])
            with_margin = target - self.margin if self.kind == "cosface" else self._turned(target)
            products = self.scale * products.scatter(1, labels[:, None], with_margin)
        return products.masked_fill(_absent(rows), -math.inf)

    def plain_logits(self, features: Tensor, rows: Tensor) -> Tensor:
        """Logits without any margin, as of faces whose class is not known; finite, also where there is no class."""
        products = self._products(features, rows)
        logits = products if self.kind == "softmax" else self.scale * products
        return logits.masked_fill(_absent(rows), -1e30)

    def loss(self, features: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of the logits."""
        return F.cross_entropy(self.logits(features, rows, labels), labels)

    def _products(self, features: Tensor, rows: Tensor) -> Tensor:
        """Inner products of features and rows, or their cosines."""
        precision = torch.promote_types(features.dtype, torch.float32)
        features, rows = features.to(precision), rows.to(precision)
        with torch.autocast(features.device.type, enabled=False):
            if self.kind == "softmax":
                return features @ rows.T
            return F.normalize(features) @ F.normalize(rows).T

    def _turned(self, cosine: Tensor) -> Tensor:
        """cos(θ + m) from cos θ, by the addition theorem."""
        # The floor keeps the root differentiable at θ = 0 and π, where rounding also takes cos² above 1.
        sine = (1 - cosine.square()).clamp(min=torch.finfo(cosine.dtype).eps).sqrt()
        turned = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        past_pi = cosine < -math.cos(self.margin)
        turned = torch.where(past_pi, cosine - self.margin * math.sin(self.margin), turned)
        return cosine + (turned - cosine).detach() if self.straight_through else turned


def _absent(rows: Tensor) -> Tensor:
    """bool [C]: rows of zeros stand for no class."""
    return (rows == 0).all(1)


def positive_hinge(features: Tensor, rows: Tensor, labels: Tensor, margin: float) -> Tensor:
    """The squared hinge of FedFace (Eq. 7), mean over the batch: max(0, m - cos(x, w_y))^2, with m the `margin`.

    It knows no negatives: features are drawn to their class until the cosine is m.
    """
    precision = torch.promote_types(features.dtype, torch.float32)
    cosine = F.cosine_similarity(features.to(precision), rows.to(precision)[labels])
    return F.relu(margin - cosine).square().mean()
