"""Terms that hold a model near another one."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def squared_drift(module: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """|theta - theta_r|^2 over everything that is trained; `anchor` holds theta_r by name."""
    parts = [(entry - anchor[name]).square().sum() for name, entry in module.named_parameters() if entry.requires_grad]
    return torch.stack(parts).sum()
