"""The choice of a backbone, as plain values from which any process builds the same one.

PyTorch, which takes seconds to import, is imported by those who build one.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from personae.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

REDUCTION = 16
"""Every backbone halves the image four times, rounding up: 112 rows become 7."""

MINIMUM_SIDE = 2 * REDUCTION
"""Below it the last map would be a single pixel wide, and say nothing of where things are in the face."""


class Architecture(NamedTuple):
    """A family of networks: a class of `nn.Module`, and what it is made with besides an embedding size and a last map.

    The file beside this one that has the class has `initialise`, too, which draws random weights of a layer.
    """

    file: str
    kind: str
    last_norm: str | None  # its BatchNorm after the last layer; None where it has no BatchNorm at all
    settings: Mapping[str, Any] = {}

    def layout(self, embedding: int, height: int, width: int) -> "nn.Module":
        """Its modules, for a last map of this height and width."""
        modules: nn.Module = self._of_file(self.kind)(embedding, height, width, **self.settings)
        return modules

    @property
    def initialise(self) -> "Callable[[nn.Conv2d | nn.Linear, torch.Generator], None]":
        found: Callable[[nn.Conv2d | nn.Linear, torch.Generator], None] = self._of_file("initialise")
        return found

    def _of_file(self, name: str) -> Any:
        return getattr(import_module(f"personae.models.{self.file}"), name)

    @property
    def norms(self) -> tuple[str, ...]:
        """What can be chosen for `Network.norm`."""
        return ("batch", "group") if self.last_norm else ("batch",)


NETWORKS: Mapping[str, Architecture] = {
    "small": Architecture("small", "Small", "features"),
    "sphere20": Architecture("sphere", "Sphere", None, {"blocks": (1, 2, 4, 1)}),
    "sphere64": Architecture("sphere", "Sphere", None, {"blocks": (3, 8, 16, 3)}),
    "iresnet18": Architecture("iresnet", "IResNet", "features", {"blocks": (2, 2, 2, 2)}),
    "iresnet34": Architecture("iresnet", "IResNet", "features", {"blocks": (3, 4, 6, 3)}),
    "iresnet50": Architecture("iresnet", "IResNet", "features", {"blocks": (3, 4, 14, 3)}),
    "iresnet100": Architecture("iresnet", "IResNet", "features", {"blocks": (3, 13, 30, 3)}),
    "mobilefacenet": Architecture("mobilefacenet", "MobileFaceNet", "last_bn"),
    "mbf": Architecture("mbf", "MBF", "features.layers.3"),
}


@dataclass(frozen=True, kw_only=True)
class Network:
    """Which backbone, and of what shape: enough to build it again in any process.

    Every backbone takes RGB images, float32 [N, 3, height, width] in [-1, 1], and gives embeddings, float32
    [N, embedding], that are *not* normalised.
    """

    name: str = "small"  # the architecture: docs/howto/networks.md has them all
    embedding: int = 64  # the length of a face's vector
    height: int = 64  # of an image, in pixels
    width: int = 64  # of an image, in pixels
    norm: str = "batch"  # or "group": GroupNorm instead of BatchNorm, which has no statistics to average
    hidden: int | None = None  # the backbone gives so many numbers, and one more linear layer makes the embedding

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def build(self, generator: "torch.Generator | None" = None) -> "nn.Module":
        """A network with random weights drawn from `generator` alone (from seed 0 without one).

        The global random state is neither read nor advanced, so building is safe in any thread at any time.
        """
        import torch
        from torch import nn

        module = self.layout().to_empty(device="cpu")
        source = torch.Generator().manual_seed(0) if generator is None else generator
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                NETWORKS[self.name].initialise(layer, source)
            elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.PReLU):
                layer.reset_parameters()  # to constants
        return module

    def layout(self) -> "nn.Module":
        """The modules alone, without memory for their weights (on the device "meta"): names, shapes and counts."""
        import torch
        from torch import nn

        from personae.models.norms import regrouped

        self.check()
        last_map = (-(-self.height // REDUCTION), -(-self.width // REDUCTION))
        architecture = NETWORKS[self.name]
        with torch.device("meta"):
            body = architecture.layout(self.hidden or self.embedding, *last_map)
            if self.norm == "group" and architecture.last_norm:
                body = regrouped(body, architecture.last_norm)
            if self.hidden is None:
                return body
            return nn.Sequential(OrderedDict(body=body, cast=nn.Linear(self.hidden, self.embedding)))

    def check(self) -> None:
        """Raise a ConfigError where there is no such network."""
        if self.name not in NETWORKS:
            raise ConfigError(f"network.name = {self.name!r}: there are {', '.join(NETWORKS)}")
        if self.norm not in ("batch", "group"):
            raise ConfigError(f"network.norm = {self.norm!r}: there are batch, group")
        if self.norm not in NETWORKS[self.name].norms:
            raise ConfigError(f"network.norm = {self.norm!r}: {self.name!r} has no BatchNorm that it could replace")
        if self.embedding < 1:
            raise ConfigError(f"network.embedding = {self.embedding}: at least 1")
        if self.hidden is not None and self.hidden < 1:
            raise ConfigError(f"network.hidden = {self.hidden}: at least 1")
        if min(self.height, self.width) < MINIMUM_SIDE:
            raise ConfigError(
                f"network.height x width = {self.height}x{self.width}: at least {MINIMUM_SIDE}x{MINIMUM_SIDE}"
            )
