"""The choice of a backbone, as plain values from which any process builds the same one."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from personae.errors import ConfigError
from personae.models import iresnet, mbf, mobilefacenet, small, sphere

REDUCTION = 16
"""Every backbone halves the image four times, rounding up: 112 rows become 7."""

MINIMUM_SIDE = 2 * REDUCTION
"""Below it the last map would be a single pixel wide, and say nothing of where things are in the face."""


class Architecture(NamedTuple):
    """A family of networks: its modules, for an embedding size and a last map, and how random weights are drawn."""

    layout: Callable[..., nn.Module]
    initialise: Callable[[nn.Conv2d | nn.Linear, torch.Generator], None]


NETWORKS: Mapping[str, Architecture] = {
    "small": Architecture(small.Small, small.initialise),
    "sphere20": Architecture(partial(sphere.Sphere, blocks=(1, 2, 4, 1)), sphere.initialise),
    "sphere64": Architecture(partial(sphere.Sphere, blocks=(3, 8, 16, 3)), sphere.initialise),
    "iresnet18": Architecture(partial(iresnet.IResNet, blocks=(2, 2, 2, 2)), iresnet.initialise),
    "iresnet34": Architecture(partial(iresnet.IResNet, blocks=(3, 4, 6, 3)), iresnet.initialise),
    "iresnet50": Architecture(partial(iresnet.IResNet, blocks=(3, 4, 14, 3)), iresnet.initialise),
    "iresnet100": Architecture(partial(iresnet.IResNet, blocks=(3, 13, 30, 3)), iresnet.initialise),
    "mobilefacenet": Architecture(mobilefacenet.MobileFaceNet, mobilefacenet.initialise),
    "mbf": Architecture(mbf.MBF, mbf.initialise),
}


@dataclass(frozen=True, kw_only=True)
class Network:
    """Which backbone, and of what shape: enough to build it anew in any process.

    Every backbone takes RGB images, float32 [N, 3, height, width] in [-1, 1], and gives embeddings, float32
    [N, embedding], that are *not* normalised. `norm` is a choice of the small network alone: "batch", or "group" for
    clients whose batches hold a single identity. With `hidden`, the backbone gives as many numbers, and one more linear
    layer casts them to the embedding: 1,000 and 512 in HF-MAML's paper, whose backbone is a classifier of objects.
    """

    name: str = "small"
    embedding: int = 64
    height: int = 64
    width: int = 64
    norm: str = "batch"
    hidden: int | None = None

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def build(self, generator: torch.Generator | None = None) -> nn.Module:
        """A network with random weights drawn from `generator` alone (from seed 0 without one).

        The global random state is neither read nor advanced, so building is safe in any thread at any time.
        """
        module = self.layout().to_empty(device="cpu")
        source = torch.Generator().manual_seed(0) if generator is None else generator
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                NETWORKS[self.name].initialise(layer, source)
            elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.PReLU):
                layer.reset_parameters()  # to constants
        return module

    def layout(self) -> nn.Module:
        """The modules alone, without memory for their weights (on the device "meta"): names, shapes and counts."""
        self.check()
        last_map = (-(-self.height // REDUCTION), -(-self.width // REDUCTION))
        options = {"norm": self.norm} if self.name == "small" else {}
        with torch.device("meta"):
            if self.hidden is None:
                return NETWORKS[self.name].layout(self.embedding, *last_map, **options)
            body = NETWORKS[self.name].layout(self.hidden, *last_map, **options)
            return nn.Sequential(OrderedDict(body=body, cast=nn.Linear(self.hidden, self.embedding)))

    def check(self) -> None:
        """Raise a ConfigError where there is no such network."""
        if self.name not in NETWORKS:
            raise ConfigError(f"network.name = {self.name!r}: there are {', '.join(NETWORKS)}")
        if self.norm not in small.NORMS:
            raise ConfigError(f"network.norm = {self.norm!r}: there are {', '.join(small.NORMS)}")
        if self.norm != "batch" and self.name != "small":
            raise ConfigError(f"network.norm = {self.norm!r}: only the network 'small' has it, not {self.name!r}")
        if self.embedding < 1:
            raise ConfigError(f"network.embedding = {self.embedding}: at least 1")
        if self.hidden is not None and self.hidden < 1:
            raise ConfigError(f"network.hidden = {self.hidden}: at least 1")
        if min(self.height, self.width) < MINIMUM_SIDE:
            raise ConfigError(
                f"network.height x width = {self.height}x{self.width}: at least {MINIMUM_SIDE}x{MINIMUM_SIDE}"
            )
