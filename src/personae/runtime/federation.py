"""What every process of a run knows: the recipe, the network, who holds which faces, and the seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder
from personae.core.holdings import ClientFaces, Holdings
from personae.core.rng import generator
from personae.core.stage import Recipe, Stage
from personae.parts.embedding import BackboneEmbedder
from personae.runtime.public import SharedFaces


class NetworkPlan(Protocol):
    """Builds the same network in any process."""

    @property
    def embedding(self) -> int: ...

    def build(self, generator: torch.Generator | None = None) -> torch.nn.Module: ...


Evaluator = Callable[[Embedder, ClientFaces], dict[str, float]]
ModelEvaluator = Callable[[Embedder], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Picklable, so that a worker process can be told everything at once."""

    seed: int
    recipe: Recipe
    network: NetworkPlan
    holdings: Holdings
    private: Path  # where clients keep what never leaves them
    keep_every: int = 0  # what they had after every so many rounds stays there; 0 for none
    evaluator: Evaluator  # figures of an embedder for one client
    figures: tuple[str, ...] = ("*",)  # their declared names, or patterns
    benchmarks: ModelEvaluator | None = None  # in a simulation: of a personal model, on the server's benchmarks
    mirror: bool = True  # embed an image together with its mirror image
    source: str | None = None  # where there are domains: the client of the source; all others are targets
    acceleration: Acceleration = field(default_factory=Acceleration)
    public: SharedFaces | None = None  # faces that every party has

    def backbone(self, device: torch.device | str = "cpu") -> Backbone:
        """A network initialised from the seed alone."""
        module = self.network.build(generator(self.seed, "initial weights"))
        return Backbone(module, self.network.embedding, device, self.acceleration)

    def embedder(self, backbone: Backbone, cores: int = 1) -> Embedder:
        return BackboneEmbedder(backbone, self.mirror, cores)

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.recipe if stage.name == name)
