"""Central training: the upper bound that federated methods are compared with, and what they exist to avoid."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from personae.core.algorithm import Algorithm, ClientInfo, Reply, Server
from personae.core.message import Broadcast, LocalState, Nothing, ServerState
from personae.core.samples import Joined, Samples
from personae.errors import ConfigError
from personae.parts.batch_norm import Statistics, keeps_statistics
from personae.parts.batches import Batch
from personae.parts.heads import HeadInit, first_rows
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    class_embeddings: Tensor  # the class embeddings
    of_public_people: bool  # whether they are of public people
    velocity: Tensor | None  # the momentum that training goes on with
    loss: float  # mean over the last round

    def figures(self) -> dict[str, float]:
        return {"loss": self.loss}

    def public_vectors(self) -> Tensor | None:
        return self.class_embeddings if self.of_public_people else None


@dataclass(frozen=True, kw_only=True)
class Central(Algorithm[State, Broadcast, LocalState, Nothing]):
    """Supervised training on the training faces of all clients in one place. Not private: for comparison only."""

    name: ClassVar[str] = "central"
    federated: ClassVar[bool] = False
    pools_faces: ClassVar[bool] = True

    margin: Margin = field(default_factory=Margin)  # the loss that tells people apart
    # The budget is that of one round. The schedule spans all rounds of the stage, and momentum is carried over.
    training: LocalSGD = field(default_factory=LocalSGD)
    head_init: HeadInit = "mean"  # how class embeddings begin: as the mean features of each person, or at random
    use_public_faces: bool = False  # whether the public faces are there, too
    batch_norm: Statistics = "train"  # whether the statistics of BatchNorm stay as they came: never, or always (eval)

    @property
    def needs_public(self) -> bool:
        return self.use_public_faces

    def start(self, previous: ServerState | None, server: Server) -> State:
        model = previous.model if previous else server.initial
        server.backbone.load(model)
        rows = first_rows(self.head_init, server.backbone, self.faces(server), server.generator)
        return State(model=model, class_embeddings=rows, of_public_people=not self.pools_faces, velocity=None, loss=0.0)

    def send(self, state: State, client: ClientInfo) -> Broadcast:  # noqa: ARG002
        return Broadcast(model=state.model)

    def merge(self, state: State, replies: Iterable[Reply[Nothing]], server: Server) -> State:  # noqa: ARG002
        module = server.backbone.load(state.model)
        rows = state.class_embeddings.to(server.backbone.device, copy=True)

        def loss(batch: Batch) -> Tensor:
            return self.margin.loss(module(batch.images), rows, batch.labels)

        part, faces = (server.round - 1, server.rounds), self.faces(server)
        fit = self.training.fit(
            server.backbone,
            [rows],
            faces,
            loss,
            server.generator,
            velocity=state.velocity,
            part=part,
            frozen_statistics=keeps_statistics(self.batch_norm, faces),
        )
        model = server.backbone.state()
        return State(
            model=model,
            class_embeddings=rows,
            of_public_people=state.of_public_people,
            velocity=fit.velocity,
            loss=fit.loss,
        )

    def faces(self, server: Server) -> Samples:
        if server.pooled is None:
            raise ConfigError("central needs the faces of all clients in one place; it only runs in a simulation")
        if not self.use_public_faces:
            return server.pooled
        if server.public_faces is None:
            raise ConfigError(
                "there are no public faces: add [data.public] to the experiment, or set use_public_faces = false"
            )
        return Joined(server.pooled, server.public_faces, torch.arange(len(server.public_faces)))
