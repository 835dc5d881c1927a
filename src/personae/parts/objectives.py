"""Objectives beside the margin losses: staying near a model, learning from one, and knowing your own people."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.bounds import Bounded, NonNegativeFloat, PositiveFloat, within


def contrastive(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """The model-contrastive loss (FedFR, Eq. 5), mean over the batch.

    -log e^{sim(f, towards) / t} / (e^{sim(f, towards) / t} + e^{sim(f, away) / t}), with cosines for sim: features are
    drawn to those of one model (the global one) and pushed from those of another (the client's previous one).
    """
    features, towards, away = (_precise(each) for each in (features, towards, away))
    nearer = F.cosine_similarity(features, towards) - F.cosine_similarity(features, away)
    return F.softplus(-nearer / temperature).mean()


def distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) of the class probabilities from logits [N, C] over `temperature`, mean over the batch.

    It is multiplied by the square of the temperature, so that its gradient does not shrink as that grows.
    """
    wanted, found = (F.log_softmax(_precise(each) / temperature, dim=1) for each in (teacher, student))
    return F.kl_div(found, wanted, reduction="batchmean", log_target=True) * temperature**2


@dataclass(frozen=True, kw_only=True)
class OneVsAll(Bounded):
    """A binary classifier with a margin for each class: is it this person or anybody else (FedFR, Eq. 6).

    For a feature x with label k, classifiers w_j with biases b_j, c_j = cos(x, w_j) and g(z) = 2 ((z + 1) / 2)^t - 1:

        lambda / s log(1 + e^{-s (g(c_k) - m) - b_k}) + (1 - lambda) / s sum_{j != k} log(1 + e^{s (g(c_j) + m) + b_j})

    s is `scale`, m `margin`, lambda `balance` and t `exponent`. A label that is no class (a public person) leaves the
    first term out and has every class in the second. Mean over the batch. (The paper prints g as 2 ((z + 1)^t / 2) - 1,
    which does not map [-1, 1] to itself; this is the form of the work that it cites.)
    """

    scale: PositiveFloat = 30.0  # s, what the stretched cosines are multiplied by
    margin: NonNegativeFloat = 0.4  # m, between a person and anybody else
    # lambda, the weight of the true person; that of all others is 1 - lambda
    balance: Annotated[float, within("[0, 1]")] = 0.7
    exponent: PositiveFloat = 3.0  # t, how strongly cosines are stretched
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def loss(self, features: Tensor, rows: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """Of features [N, D] under classifiers `rows` [C, D] with biases [C]; labels of C or more are nobody's."""
        with torch.autocast(features.device.type, enabled=False):
            cosine = F.normalize(_precise(features)) @ F.normalize(_precise(rows)).T
            stretched = 2 * ((cosine + 1) / 2).clamp(min=0) ** self.exponent - 1  # rounding takes a cosine below -1
            own = labels[:, None] == torch.arange(len(rows), device=labels.device)
            positive = F.softplus(-self.scale * (stretched - self.margin) - bias)
            negative = F.softplus(self.scale * (stretched + self.margin) + bias)
            terms = torch.where(own, self.balance * positive, (1 - self.balance) * negative)
            absent = (rows == 0).all(1)  # rows of zeros stand for no class
            return terms.masked_fill(absent, 0.0).sum(1).mean() / self.scale


def _precise(values: Tensor) -> Tensor:
    """At least float32, under autocast too."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
