"""Embedding regularisation: embeddings stay near those of the model that the client received (HF-MAML, Eq. 4)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from personae.core.backbone import Backbone
from personae.core.payload import ModelState
from personae.parts.batches import Batch
from personae.parts.terms.term import Term, Value


def embedding_drift(current: Tensor, beginning: Tensor) -> Tensor:
    """1 - cos of embeddings [N, D] and of what they were, mean over the batch."""
    precision = torch.promote_types(current.dtype, torch.float32)
    return (1 - F.cosine_similarity(current.to(precision), beginning.to(precision))).mean()


@dataclass(frozen=True, kw_only=True)
class EmbeddingRegularisation(Term):
    """1 - cos of embeddings and of what they are under the model received; its weight is C of HF-MAML's Eq. 4.

    The model received runs in the same module on weights of its own, and in the same mode: in training, BatchNorm
    normalises both by the batch, so that the term is zero before the first step and says what the weights have done
    since.
    """

    name: ClassVar[str] = "embedding-regularisation"

    def begin(self, backbone: Backbone, received: ModelState) -> Value:
        module, layout = backbone.module, backbone.layout
        beginning = received.flat.to(backbone.device, copy=True)

        def drift(batch: Batch, features: Tensor) -> Tensor:
            with torch.no_grad():
                began: Tensor = functional_call(module, layout.views(beginning), (batch.images,))
            return embedding_drift(features, began)

        return drift
