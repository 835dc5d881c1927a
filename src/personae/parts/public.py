"""Public faces in a client's training: which of them, and the class embeddings that they begin with."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from personae.core.algorithm import Client, Server
from personae.core.bounds import Bounded, within
from personae.core.embedder import embed
from personae.core.message import ServerState
from personae.core.payload import ModelState
from personae.core.samples import Joined
from personae.errors import ConfigError, Diverged
from personae.parts.embedding import BackboneEmbedder
from personae.parts.hard_negatives import HardNegatives, Screen
from personae.parts.heads import first_rows
from personae.parts.margins import Margin


@dataclass(frozen=True, kw_only=True)
class PublicSampling(Bounded):
    """Hard negatives: the public faces whose cosine with any of a client's own training faces is above a threshold."""

    # t_HN; if left out, the margin of the loss, as a model that was trained with it should keep all others farther
    # away. -1 takes every public face.
    threshold: Annotated[float, within("[-1, 1]")] | None = None
    screen: Screen = "float32"  # the arithmetic that looks first; it changes the time it takes and not what is chosen
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @property
    def takes_all(self) -> bool:
        return self.threshold is not None and self.threshold <= -1

    def first_vectors(self, previous: ServerState | None, server: Server, model: ModelState) -> Tensor:
        """Phi at the beginning: as the stage before left it, or else the mean feature of each public person."""
        if server.public_faces is None:
            raise ConfigError(
                "sampling needs public faces: add [data.public] to the experiment, or set use_public_faces = false"
            )
        known = previous.public_vectors() if previous else None
        if known is not None and known.shape == (server.public_faces.classes, server.backbone.width):
            return known
        server.backbone.load(model)
        rows = first_rows("mean", server.backbone, server.public_faces, server.generator)
        if not rows.isfinite().all():  # an untrained network with BatchNorm may overflow in evaluation mode
            raise Diverged("features of public faces are not finite under the model to start from; pre-train it first")
        return rows

    def join(self, client: Client, model: ModelState, margin: Margin) -> Joined:
        """The client's training faces, and after them its hard negatives under this model."""
        if client.public_faces is None:
            raise ConfigError(f"{client.info.name} has no public faces to train with")
        public = client.public_faces.samples
        if self.takes_all:
            return Joined(client.train, public, torch.arange(len(public)))
        threshold = margin.margin if self.threshold is None else self.threshold
        features = client.public_faces.features(model)
        client.backbone.load(model)
        local = embed(BackboneEmbedder(client.backbone, mirror=False), client.train).to(client.backbone.device)
        hard = HardNegatives(local, threshold, self.screen).among(features)
        return Joined(client.train, public, hard.nonzero().flatten())
