"""Local adaptation: every client makes the finished global model its own (Yu, Bagdasaryan and Shmatikov).

server: send theta, which stays as it is, and Phi if there is any
client: theta_i, W_i, Phi_i <- SGD on the margin loss over [W_i || Phi_i] of its own faces and of hard public negatives,
            from theta and Phi; with distillation, + KL(logits of theta || logits of theta_i)
        all of them stay
A client uses theta_i.

It comes in two ways. `adapt` is a stage that clients take part in: they keep theta_i, go on from it in further rounds,
and send a mean loss. In `tune` no client is asked: whoever is evaluated, a newcomer too, takes a few steps on the spot
from theta and from the rows that it kept in an earlier stage (or from those that the server averaged), keeps nothing
and sends nothing; every round does so again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from personae.algorithms import fedavg
from personae.core.algorithm import Aggregates, Algorithm, Client, ClientInfo, Reply, Server
from personae.core.bounds import PositiveFloat
from personae.core.embedder import Embedder
from personae.core.message import Broadcast, LocalState, Message, Nothing, ServerState
from personae.core.payload import ModelState, PublicEmbeddings, Scalars
from personae.core.samples import Samples
from personae.errors import ConfigError
from personae.parts.batch_norm import Statistics
from personae.parts.batches import Batch
from personae.parts.embedding import class_features, still
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.local_sgd import Fit, LocalSGD
from personae.parts.local_step import LocalStep
from personae.parts.margins import Margin
from personae.parts.objectives import distillation
from personae.parts.public import PublicSampling


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    public_embeddings: PublicEmbeddings | None  # Phi; None where no public faces are used

    def public_vectors(self) -> Tensor | None:
        return self.public_embeddings.vectors if self.public_embeddings else None


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    public_embeddings: PublicEmbeddings | None  # Phi


@dataclass(frozen=True, kw_only=True)
class Private(LocalState):
    model: ModelState  # theta_i: the personal model
    class_embeddings: Tensor  # [W_i || Phi], Phi as this client has tuned it


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class _Adaptation(LocalStep):
    """How a client makes a model its own.

    In a distillation theta's logits are taken over the mean feature of each person under it, and Phi. They have no
    margin, as the class of a face is not known where a model is used. `terms` hold theta_i to theta.
    """

    # fine-tune, or distil, which also asks the tuned model to agree with the global one.
    method: Literal["fine-tune", "distil"] = "fine-tune"
    # distil: the weight of the distillation; the paper that compares with it does not say
    strength: PositiveFloat = 1.0
    temperature: PositiveFloat = 1.0  # distil: what logits are divided by; not said there either
    # Whether the statistics of BatchNorm stay as they came: where all faces are of one person, whose identity they
    # would take away (auto), always (eval) or never (train).
    batch_norm: Statistics = "auto"

    def adapted(self, client: Client, rows: Tensor, samples: Samples, theta: ModelState, known: Tensor) -> Fit:
        """Train the client's backbone, as it is loaded, and the rows; `known` are those for the logits of theta."""
        teacher = still(client.backbone, theta, "teacher") if self.method == "distil" else None
        classification = self.classification(rows)

        def loss(batch: Batch, features: Tensor) -> Tensor:
            total = classification(batch, features)
            if teacher:
                found = self.margin.plain_logits(features, rows)
                wanted = self.margin.plain_logits(teacher(batch.images), known)
                total = total + self.strength * distillation(found, wanted, self.temperature)
            return total

        return self.train(client, theta, [rows], loss, samples=samples)


@dataclass(frozen=True, kw_only=True)
class Adapt(_Adaptation, Algorithm[State, Down, Private, Up]):
    """A stage after any federated run: personal models from the global one, which itself does not change.

    W_i begins as the mean feature of each person under theta. In further rounds a client goes on from where it was.
    """

    name: ClassVar[str] = "adapt"
    aggregates: ClassVar[Aggregates] = "nothing"

    use_public_faces: bool = True  # whether clients train with public faces beside their own
    sampling: PublicSampling = field(default_factory=PublicSampling)  # with which public faces

    @property
    def withheld(self) -> frozenset[str]:
        return frozenset() if self.use_public_faces else frozenset({"public_embeddings"})

    @property
    def needs_public(self) -> bool:
        return self.use_public_faces

    def start(self, previous: ServerState | None, server: Server) -> State:
        model = previous.model if previous else server.initial
        phi = PublicEmbeddings(self.sampling.first_vectors(previous, server, model)) if self.use_public_faces else None
        return State(model=model, public_embeddings=phi)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model, public_embeddings=state.public_embeddings)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        samples = self.sampling.join(client, down.model, self.margin) if self.use_public_faces else client.train
        client.backbone.load(down.model)
        known = class_features(client.backbone, client.train)
        if down.public_embeddings:
            known = torch.cat([known, down.public_embeddings.vectors.to(known.device)])
        rows = private.class_embeddings.to(known.device, copy=True) if private else known.clone()
        client.backbone.load(private.model if private else down.model)
        fit = self.adapted(client, rows, samples, down.model, known)
        return Up(training=Scalars({"loss": fit.loss})), Private(model=client.backbone.state(), class_embeddings=rows)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:  # noqa: ARG002
        return state

    def personal(self, down: Down, private: Private | None, client: Client) -> Embedder:
        client.backbone.load(private.model if private else down.model)
        return client.embedder(client.backbone)


@dataclass(frozen=True, kw_only=True)
class Tune(_Adaptation, Algorithm[fedavg.State, fedavg.Down, LocalState, Nothing]):
    """A few steps of training at each client when it is evaluated: the global model before, its personal one after.

    Each round of the stage tunes again from theta, with other batches.
    """

    name: ClassVar[str] = "tune"
    federated: ClassVar[bool] = False

    # The loss that tells a client's people apart, as in HF-MAML's paper.
    margin: Margin = field(default_factory=lambda: Margin(kind="arcface", scale=8.0, margin=0.5))
    # Five batches of 64 with a rate of 0.01 and a momentum of 0.9, as in HF-MAML's paper.
    training: LocalSGD = field(
        default_factory=lambda: LocalSGD(lr=0.01, momentum=0.9, weight_decay=0.0, batch_size=64, iterations=5)
    )
    # Whose class embeddings a client begins with: its own as it last had them, or, after a stage with a global
    # classification layer, the server's averaged ones.
    head: Literal["own", "averaged"] = "own"
    head_init: HeadInit = "mean"  # how class embeddings begin at a client of which there are none yet, a new one

    @property
    def withheld(self) -> frozenset[str]:
        return frozenset() if self.head == "averaged" else frozenset({"class_embeddings"})

    def start(self, previous: ServerState | None, server: Server) -> fedavg.State:
        averaged = previous.class_embeddings if isinstance(previous, fedavg.State) else {}
        if self.head == "averaged" and not averaged:
            raise ConfigError(
                'tune: head = "averaged" needs a global classification layer, and the stage before has none; '
                'put fedavg or hf_maml_global there, or take head = "own"'
            )
        return fedavg.State(
            model=previous.model if previous else server.initial,
            class_embeddings=averaged if self.head == "averaged" else {},
        )

    def send(self, state: fedavg.State, client: ClientInfo) -> fedavg.Down:
        return fedavg.Down(model=state.model, class_embeddings=state.class_embeddings.get(client.name))

    def merge(self, state: fedavg.State, replies: Iterable[Reply[Nothing]], server: Server) -> fedavg.State:  # noqa: ARG002
        return state

    def personal(self, down: fedavg.Down, private: LocalState | None, client: Client) -> Embedder:  # noqa: ARG002
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, down.class_embeddings, client.recall(OwnHead))
        known = class_features(client.backbone, client.train) if self.method == "distil" else rows
        self.adapted(client, rows, client.train, down.model, known)
        return client.embedder(client.backbone)
