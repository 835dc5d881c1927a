"""FedProx: the weights stay near those that the client received (Li et al.)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.payload import ModelState
from personae.parts.batches import Batch
from personae.parts.terms.term import Term, Value


@dataclass(frozen=True, kw_only=True)
class Proximal(Term):
    """Half the squared distance of the backbone's weights from those received; its weight is mu of FedProx."""

    name: ClassVar[str] = "proximal"

    def begin(self, backbone: Backbone, received: ModelState) -> Value:
        layout = backbone.layout
        trained = tuple((name, weight) for name, weight in backbone.module.named_parameters() if weight.requires_grad)
        anchor = received.flat.to(backbone.device, copy=True)

        def distance(batch: Batch, features: Tensor) -> Tensor:  # noqa: ARG001
            began = layout.views(anchor)
            return torch.stack([(weight - began[name]).square().sum() for name, weight in trained]).sum() / 2

        return distance
