"""Embedding regularisation: a client's embeddings stay near those of the model that it began with."""

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from personae.core.backbone import Backbone
from personae.core.layout import Layout
from personae.core.payload import ModelState


def embedding_drift(current: Tensor, beginning: Tensor) -> Tensor:
    """1 - cos of embeddings [N, D] and of what they were, mean over the batch (the second term of Eq. 4, C = 1)."""
    precision = torch.promote_types(current.dtype, torch.float32)
    return (1 - F.cosine_similarity(current.to(precision), beginning.to(precision))).mean()


def require_regularisation(strength: float) -> None:
    """Raise a ValueError for an option that is no weight of this term."""
    if not 0 <= strength < math.inf:
        raise ValueError("regularisation must be finite and not negative")


@dataclass(frozen=True, eq=False)
class EmbeddingRegulariser:
    """C (1 - cos(f_begin(x), f(x))) as a term of any loss, with C the `strength` and f_begin the model received.

    The beginning runs in the same module on weights of its own, and in the same mode: in training, BatchNorm normalises
    both by the batch, so that the term is zero before the first step and says what the weights have done since. Its
    weights are copied once; with a strength of 0 nothing is copied or computed.
    """

    strength: float
    module: nn.Module
    layout: Layout
    beginning: Tensor | None  # the weights received, as a vector of its own

    @classmethod
    def of(cls, strength: float, backbone: Backbone, received: ModelState) -> Self:
        beginning = received.flat.to(backbone.device, copy=True) if strength else None
        return cls(strength, backbone.module, backbone.layout, beginning)

    def __call__(self, images: Tensor, features: Tensor) -> Tensor | float:
        """The term for a batch of images whose embeddings under the current weights are `features`."""
        if self.beginning is None:
            return 0.0
        with torch.no_grad():
            began: Tensor = functional_call(self.module, self.layout.views(self.beginning), (images,))
        return self.strength * embedding_drift(features, began)
