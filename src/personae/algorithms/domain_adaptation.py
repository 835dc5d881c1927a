"""Domain adaptation that needs the faces of both domains in one place: DAN and DANN, to compare private methods with.

Both train on labelled faces of the source, and make the features of source and target alike on the way: DAN (Long et
al., 2015) by their maximum mean discrepancy, DANN (Ganin et al., 2016) by fooling a network that tells them apart.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from personae.core.algorithm import Algorithm, ClientInfo, Domains, Reply, Server
from personae.core.bounds import NonNegativeFloat, PositiveInt
from personae.core.message import Broadcast, LocalState, Nothing, ServerState
from personae.core.samples import UNLABELLED
from personae.errors import ConfigError
from personae.parts.alignment import Mixture, discriminator, domain_loss, mmd, reverse
from personae.parts.batch_norm import Statistics, keeps_statistics
from personae.parts.batches import Batch
from personae.parts.heads import HeadInit, first_rows
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    class_embeddings: Tensor  # the class embeddings of the source
    helpers: dict[str, Tensor]  # what else is trained, such as DANN's discriminator
    velocity: Tensor | None  # the momentum that training goes on with
    loss: float  # mean over the last round

    def figures(self) -> dict[str, float]:
        return {"loss": self.loss}


@dataclass(frozen=True, kw_only=True)
class _Adaptation(Algorithm[State, Broadcast, LocalState, Nothing]):
    """A batch holds faces of both domains, about as many of each; the labels of targets are not looked at."""

    federated: ClassVar[bool] = False
    pools_faces: ClassVar[bool] = True

    margin: Margin = field(default_factory=Margin)  # the loss that tells the people of the source apart
    # As in central, a round's budget, on a set in which the smaller domain is repeated until both are equal.
    training: LocalSGD = field(default_factory=LocalSGD)
    strength: NonNegativeFloat = 1.0  # the weight of what makes both domains alike
    head_init: HeadInit = "mean"  # how the class embeddings of the source begin
    batch_norm: Statistics = "train"  # whether the statistics of BatchNorm stay as they came: never, or always (eval)

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return "source"

    @abstractmethod
    def alignment(self, features: Tensor, labelled: Tensor, helpers: Sequence[Tensor], progress: float) -> Tensor:
        """What is added to the loss of the source; `labelled` says which features are of the source."""

    def helpers(self, server: Server) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def start(self, previous: ServerState | None, server: Server) -> State:
        model = previous.model if previous else server.initial
        server.backbone.load(model)
        rows = first_rows(self.head_init, server.backbone, self.domains(server).source, server.generator)
        return State(model=model, class_embeddings=rows, helpers=self.helpers(server), velocity=None, loss=0.0)

    def send(self, state: State, client: ClientInfo) -> Broadcast:  # noqa: ARG002
        return Broadcast(model=state.model)

    def merge(self, state: State, replies: Iterable[Reply[Nothing]], server: Server) -> State:  # noqa: ARG002
        module, device = server.backbone.load(state.model), server.backbone.device
        rows = state.class_embeddings.to(device, copy=True)
        helpers = tuple(entry.to(device, copy=True) for entry in state.helpers.values())
        progress = (server.round - 1) / server.rounds

        def loss(batch: Batch) -> Tensor:
            features, labelled = module(batch.images), batch.labels != UNLABELLED
            labels = batch.labels.clamp(min=0)
            each = F.cross_entropy(self.margin.logits(features, rows, labels), labels, reduction="none")
            supervised = (each * labelled).sum() / labelled.sum().clamp(min=1)
            return supervised + self.alignment(F.normalize(features.float()), labelled, helpers, progress)

        faces = Mixture(*self.domains(server))
        fit = self.training.fit(
            server.backbone,
            [rows, *helpers],
            faces,
            loss,
            server.generator,
            velocity=state.velocity,
            part=(server.round - 1, server.rounds),
            frozen_statistics=keeps_statistics(self.batch_norm, faces),
        )
        trained = dict(zip(state.helpers, helpers, strict=True))
        return State(
            model=server.backbone.state(), class_embeddings=rows, helpers=trained, velocity=fit.velocity, loss=fit.loss
        )

    def domains(self, server: Server) -> Domains:
        if server.domains is None:
            raise ConfigError(
                f"{self.name} needs the faces of a source and of targets in one place: it only runs in a simulation, "
                'with all clients, and with [partition] by = "domain"'
            )
        return server.domains


@dataclass(frozen=True, kw_only=True)
class DAN(_Adaptation):
    """Source and target made alike by their maximum mean discrepancy. Not private: for comparison only."""

    name: ClassVar[str] = "dan"

    strength: NonNegativeFloat = 1.0  # what the discrepancy is multiplied by (lambda of the DAN paper)

    def alignment(
        self,
        features: Tensor,
        labelled: Tensor,
        helpers: Sequence[Tensor],  # noqa: ARG002
        progress: float,  # noqa: ARG002
    ) -> Tensor:
        return self.strength * mmd(features, labelled)


@dataclass(frozen=True, kw_only=True)
class DANN(_Adaptation):
    """Source and target made alike by fooling a discriminator. Not private: for comparison only."""

    name: ClassVar[str] = "dann"

    # What the reversed gradient is multiplied by in the end (lambda of the DANN paper). It grows from round to round,
    # 2 / (1 + e^(-10 p)) - 1 of it with p the share of the rounds done. In the first round the discriminator alone
    # learns.
    strength: NonNegativeFloat = 1.0
    hidden: PositiveInt = 64  # the width of the discriminator

    def helpers(self, server: Server) -> dict[str, Tensor]:
        if server.rounds < 2:
            raise ConfigError("dann: the reversal begins with the second round; give the stage more rounds than one")
        return discriminator(server.backbone.width, self.hidden, server.generator)

    def alignment(self, features: Tensor, labelled: Tensor, helpers: Sequence[Tensor], progress: float) -> Tensor:
        strength = self.strength * (2 / (1 + math.exp(-10 * progress)) - 1)
        return domain_loss(reverse(features, strength), labelled, helpers)
