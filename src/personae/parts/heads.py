"""Class embeddings: one row for each identity, and how they begin."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.samples import Samples
from personae.parts.embedding import class_features

Beginning = Literal["random", "mean"]


def first_rows(beginning: Beginning, backbone: Backbone, samples: Samples, generator: torch.Generator) -> Tensor:
    """Rows of length one: in random directions, or each class's mean feature under the backbone as it is."""
    if beginning == "mean":
        return class_features(backbone, samples)
    return F.normalize(torch.randn(samples.classes, backbone.width, generator=generator), dim=1).to(backbone.device)
