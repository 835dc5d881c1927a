"""FedFace: one identity a client, class embeddings that the server spreads out (Aggarwal, Zhou and Jain, Algorithm 1).

client: w_i <- mean of f_theta over its own faces, of length one, when it first takes part (Eq. 6)
server: send theta, and to client i its own w_i
client: theta_i, w_i <- SGD on the positive loss max(0, m - w_i' f(x))^2 (Eq. 7), from theta and w_i
        send theta_i, w_i of length one, and n_i
server: theta <- sum_i n_i theta_i / sum_i n_i
        W <- W - lambda grad reg(W), the spreadout regulariser (Eq. 9), each row of length one again
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.bounds import NonNegativeFloat, PositiveInt, within
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.parts.averaging import Weighting, weight_of
from personae.parts.batch_norm import Statistics
from personae.parts.batches import Batch
from personae.parts.corrections import Reduction, corrected, drawn, spreadout
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.local_step import LocalStep
from personae.parts.margins import positive_hinge
from personae.parts.terms import Value


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    class_embeddings: dict[str, ClassEmbeddings]  # w_i of every client seen so far


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    class_embeddings: ClassEmbeddings | None  # the client's own w_i, spread out; None before the server has seen it


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    """w_i as the client last had it, for as long as the server knows none."""


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # theta_i
    class_embeddings: ClassEmbeddings | None  # w_i; it stays with the client where nothing is spread out
    samples: Count  # n_i
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class FedFace(LocalStep, Algorithm[State, Down, Private, Up]):
    """Federated averaging over clients that hold one identity each and see no negatives.

    A client with more than one identity has negatives of its own: it trains on the margin loss instead.

    Rows of clients that are absent from a round stay as last seen, and push the others all the same.
    """

    name: ClassVar[str] = "fedface"

    hinge: Annotated[float, within("(0, 1]")] = 0.9  # m, a cosine: the margin of the positive loss
    strength: NonNegativeFloat = 10.0  # lambda; 0 for no spreadout, and positive-only averaging is what remains
    # v, the spreadout's margin as a cosine distance; the paper does not say, its code has this
    spread: Annotated[float, within("(0, 2]")] = 0.7
    steps: PositiveInt = 1  # how often the server steps in a round: once in Algorithm 1, ten times in the authors' code
    # of the server's steps, from rest in every round: none in Algorithm 1, 0.9 in the code
    momentum: Annotated[float, within("[0, 1)")] = 0.0
    reduction: Reduction = "sum"  # whether the regulariser is a sum, as in Eq. 9, or a mean, as in the authors' code
    # If given, so many classes are drawn for each step, and the regulariser is their part of the sum, scaled up. This
    # is for more clients than the exact sum has time for.
    anchors: PositiveInt | None = None
    head_init: HeadInit = "mean"  # how w_i begins: mean as in Eq. 6, or random
    fixed: bool = False  # class embeddings stay as they began; with a random head_init, one of the paper's baselines
    weighting: Weighting = "samples"  # of the average: by samples, n_i as above, or uniform
    # BatchNorm that trains on batches of one identity subtracts their mean, and with it the identity. With auto, a
    # client with one identity normalises by the statistics that it received and hands them on untouched. With eval
    # every client does so, with train none.
    batch_norm: Statistics = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fixed and self.strength:
            raise ValueError("fixed class embeddings cannot be spread out: set strength = 0 or fixed = false")

    @property
    def withheld(self) -> frozenset[str]:
        return frozenset({"class_embeddings"}) if not self.strength else frozenset()

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial, class_embeddings={})

    def send(self, state: State, client: ClientInfo) -> Down:
        return Down(model=state.model, class_embeddings=state.class_embeddings.get(client.name))

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, down.class_embeddings, private)
        fit = self.train(
            client,
            down.model,
            [] if self.fixed else [rows],
            self.positive(rows) if client.train.classes == 1 else self.classification(rows),
        )
        rows = F.normalize(rows)
        up = Up(
            model=client.backbone.state(),
            class_embeddings=None if "class_embeddings" in self.withheld else ClassEmbeddings(rows),
            samples=Count(len(client.train)),
            training=Scalars({"loss": fit.loss}),
        )
        return up, Private(class_embeddings=rows)

    def positive(self, rows: Tensor) -> Value:
        """The loss of a client with one identity, which has no negatives."""
        hinge = self.hinge

        def loss(batch: Batch, features: Tensor) -> Tensor:
            return positive_hinge(features, rows, batch.labels, hinge)

        return loss

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        heard: dict[str, ClassEmbeddings] = {}

        def models() -> Iterator[tuple[Tensor, float]]:
            for reply in replies:
                if reply.up.class_embeddings:
                    heard[reply.client.name] = reply.up.class_embeddings
                yield reply.up.model.flat, weight_of(self.weighting, reply.up.samples.value)

        model = server.aggregate_models(models(), state.model)

        def correct(rows: Tensor, owners: Tensor, moving: Tensor) -> Tensor:  # noqa: ARG001 - whoever holds them
            return self.spread_out(rows, moving, server.generator)

        return State(
            model=model, class_embeddings=corrected(state.class_embeddings, heard, correct, server.backbone.device)
        )

    def spread_out(self, rows: Tensor, moving: Tensor, generator: torch.Generator) -> Tensor:
        """W - lambda grad reg(W), back on the sphere, once or more often, where rows may move."""
        velocity = torch.zeros_like(rows)
        for _ in range(self.steps):
            anchors = drawn(self.anchors, rows, generator)
            slope = spreadout(rows, self.spread, reduction=self.reduction, anchors=anchors)
            velocity = self.momentum * velocity + slope.gradient
            rows = torch.where(moving, F.normalize(rows - self.strength * velocity), rows)
        return rows
