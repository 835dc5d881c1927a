"""Decoupled feature customisation: a client's own view of the features, beside the one that all share."""

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Branch:
    """A transform of features and, over what it gives, a classifier for each of a client's own people."""

    transform: Tensor  # [D, D]: the matrix of Pi
    shift: Tensor  # [D]: its bias
    classifiers: Tensor  # [classes, D]: Omega
    bias: Tensor  # [classes, 1]: b; one row per class, like everything that grows with their number

    @classmethod
    def beginning(cls, rows: Tensor) -> Self:
        """The identity, and classifiers that are the class embeddings `rows` [classes, D]."""
        classes, width = rows.shape
        transform = torch.eye(width, device=rows.device)
        return cls(transform, rows.new_zeros(width), rows.clone(), rows.new_zeros(classes, 1))

    @property
    def parts(self) -> dict[str, Tensor]:
        """What is trained, and kept, by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear(features, self.transform, self.shift)

    def after(self, network: nn.Module) -> nn.Module:
        """The network followed by the transform, under the names of a `Network` with `hidden`."""
        width = len(self.shift)
        layer = nn.Linear(width, width, device="meta")  # nothing random is drawn there
        layer.load_state_dict({"weight": self.transform, "bias": self.shift}, assign=True)
        return nn.Sequential(OrderedDict(body=network, cast=layer.requires_grad_(False)))
