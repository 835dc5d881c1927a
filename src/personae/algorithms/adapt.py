"""Local adaptation: every client tunes the finished global model for itself (Yu, Bagdasaryan and Shmatikov).

server: send theta, and Phi if there is any
client: theta_i, W_i, Phi_i <- SGD on CosFace over [W_i || Phi_i] of its own faces and of hard public negatives, from
            theta and Phi; with distillation, + KL(logits of theta || logits of theta_i)
        all of them stay: a mean loss is what it sends
server: theta stays as it is
A client uses theta_i.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.embedder import Embedder
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import ModelState, PublicEmbeddings, Scalars
from personae.parts.embedding import class_features, still
from personae.parts.local_sgd import Batch, LocalSGD
from personae.parts.margins import Margin
from personae.parts.objectives import distillation
from personae.parts.public import PublicSampling


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    public: PublicEmbeddings | None  # Phi; None where no public faces are used

    def public_rows(self) -> Tensor | None:
        return self.public.rows if self.public else None


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    public: PublicEmbeddings | None  # Phi


@dataclass(frozen=True, kw_only=True)
class Private(LocalState):
    model: ModelState  # theta_i: the personal model
    rows: Tensor  # [W_i || Phi], Phi as this client has tuned it


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class Adapt(Algorithm[State, Down, Private, Up]):
    """A tuning stage after any federated run: personal models from the global one, which itself does not change.

    `method`: fine-tune, or distil, which also asks the tuned model to agree with the global one. `strength` and
    `temperature` are those of the distillation; the paper that compares with it says neither. `public`, `sampling`:
    whether clients train with public faces beside their own, and with which. W_i begins as the mean feature of each
    person under theta; these, with Phi, are also what theta's logits are taken over. They have no margin, as the class
    of a face is not known where a model is used. In further rounds a client goes on from where it was.
    """

    name: ClassVar[str] = "adapt"

    method: Literal["fine-tune", "distil"] = "fine-tune"
    margin: Margin = field(default_factory=Margin)
    training: LocalSGD = field(default_factory=LocalSGD)
    public: bool = True
    sampling: PublicSampling = field(default_factory=PublicSampling)
    strength: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.strength < math.inf or not 0 < self.temperature < math.inf:
            raise ValueError("strength and temperature must be positive and finite")

    @property
    def withheld(self) -> frozenset[str]:
        return frozenset() if self.public else frozenset({"public"})

    def start(self, previous: ServerState | None, server: Server) -> State:
        model = previous.model if previous else server.initial
        phi = PublicEmbeddings(self.sampling.rows(previous, server, model)) if self.public else None
        return State(model=model, public=phi)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model, public=state.public)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        samples = self.sampling.join(client, down.model, self.margin) if self.public else client.train
        teacher = still(client.backbone, down.model, "teacher")
        client.backbone.load(down.model)
        known = class_features(client.backbone, client.train)
        if down.public:
            known = torch.cat([known, down.public.rows.to(known.device)])
        rows = private.rows.to(known.device, copy=True) if private else known.clone()
        module = client.backbone.load(private.model if private else down.model)

        def loss(batch: Batch) -> Tensor:
            features = module(batch.images)
            total = self.margin.loss(features, rows, batch.labels)
            if self.method == "distil":
                found = self.margin.plain_logits(features, rows)
                wanted = self.margin.plain_logits(teacher(batch.images), known)
                total = total + self.strength * distillation(found, wanted, self.temperature)
            return total

        fit = self.training.fit(
            client.backbone,
            [rows],
            samples,
            loss,
            client.generator,
            frozen_statistics=bool((samples.labels == samples.labels[0]).all()),
        )
        return Up(training=Scalars({"loss": fit.loss})), Private(model=client.backbone.state(), rows=rows)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:  # noqa: ARG002
        return state

    def personal(self, down: Down, private: Private | None, client: Client) -> Embedder:
        client.backbone.load(private.model if private else down.model)
        return client.embedder(client.backbone)
