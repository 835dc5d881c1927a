"""Tuning: each client trains the global model on a few batches of its own, and keeps the result to itself.

server: send w, which stays as it is
client: w_k, a_k <- a few steps of SGD on the margin loss of its own faces, from w and the rows it kept, or new ones

Nothing is sent back. Every client is judged before (the global model) and after (its personal one): those that took
part in training, and new ones that only joined now. Each round of the stage tunes anew from w, with other batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.embedder import Embedder
from personae.core.message import Broadcast, LocalState, Nothing, ServerState
from personae.parts.heads import Beginning, OwnRows, first_rows
from personae.parts.local_sgd import Batch, LocalSGD
from personae.parts.margins import Margin


@dataclass(frozen=True, kw_only=True)
class Tune(Algorithm[ServerState, Broadcast, LocalState, Nothing]):
    """A few steps of training at each client, evaluated before and after.

    `training`: five batches of 64 with a rate of 0.01 and a momentum of 0.9, as HF-MAML's paper has it. `rows`: the
    class embeddings of a client that kept none from the stages before, a new one.
    """

    name: ClassVar[str] = "tune"
    federated: ClassVar[bool] = False

    margin: Margin = field(default_factory=lambda: Margin(kind="arcface", scale=8.0, margin=0.5))
    training: LocalSGD = field(
        default_factory=lambda: LocalSGD(lr=0.01, momentum=0.9, weight_decay=0.0, batch_size=64, iterations=5)
    )
    rows: Beginning = "mean"

    def start(self, previous: ServerState | None, server: Server) -> ServerState:
        return ServerState(model=previous.model if previous else server.initial)

    def send(self, state: ServerState, client: ClientInfo) -> Broadcast:  # noqa: ARG002
        return Broadcast(model=state.model)

    def merge(self, state: ServerState, replies: Iterable[Reply[Nothing]], server: Server) -> ServerState:  # noqa: ARG002
        return state

    def personal(self, down: Broadcast, private: LocalState | None, client: Client) -> Embedder:  # noqa: ARG002
        module = client.backbone.load(down.model)
        kept = client.recall(OwnRows)
        if kept:
            rows = kept.rows.to(client.backbone.device, copy=True)
        else:
            rows = first_rows(self.rows, client.backbone, client.train, client.generator)

        def loss(batch: Batch) -> Tensor:
            return self.margin.loss(module(batch.images), rows, batch.labels)

        self.training.fit(client.backbone, [rows], client.train, loss, client.generator)
        return client.embedder(client.backbone)
