"""BatchNorm in training: whose statistics it normalises by."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

from personae.core.samples import Samples

Statistics = Literal["auto", "eval", "train"]  # kept where all faces are of one person, always, or never


def keeps_statistics(mode: Statistics, samples: Samples) -> bool:
    """Whether a client that trains on these samples leaves the statistics of BatchNorm as they came."""
    return mode == "eval" or (mode == "auto" and bool((samples.labels == samples.labels[:1]).all()))


def batch_norms(module: nn.Module) -> list[nn.Module]:
    """The layers of the network that normalise by batches."""
    return [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def training_mode(module: nn.Module, frozen_statistics: bool) -> Iterator[None]:
    """Training mode inside, evaluation mode after."""
    module.train()
    for layer in batch_norms(module) if frozen_statistics else ():
        layer.eval()
    try:
        yield
    finally:
        module.eval()
