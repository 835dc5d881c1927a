"""An oracle: FedPE whose clients see everybody's class embeddings, frozen. It bounds what a correction can be worth.

server: send theta, and to client k the rows W_j of all others, as last seen
client: theta_k, W_k <- SGD on the margin loss of its own faces over the classes of all clients; W_j stays
        send theta_k, W_k and n_k
server: theta <- sum_k n_k theta_k / sum_k n_k
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.parts.averaging import Weighting, weight_of
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.local_step import LocalStep


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    class_embeddings: dict[str, ClassEmbeddings]  # W_k of every client seen so far


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    others: ClassEmbeddings | None  # W_j of all other clients; None before the server has seen any


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    """W_k: the client's class embeddings."""


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # theta_k
    class_embeddings: ClassEmbeddings  # W_k
    samples: Count  # n_k
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class Oracle(LocalStep, Algorithm[State, Down, Private, Up]):
    """Federated averaging where each client tells its people from everybody's. Not private: for comparison only.

    A client trains with the true cross-client negatives that FedGC's correction stands in for. Everybody receives a
    template of everybody.
    """

    name: ClassVar[str] = "oracle"
    shows_others: ClassVar[bool] = True

    weighting: Weighting = "samples"  # of the average: by samples, n_k as above, or uniform
    head_init: HeadInit = "mean"  # how W_k begins when a client first takes part

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial, class_embeddings={})

    def send(self, state: State, client: ClientInfo) -> Down:
        device = state.model.flat.device  # what came through the disk is not there yet
        known = sorted(state.class_embeddings.items())
        others = [entry.vectors.to(device) for name, entry in known if name != client.name]
        return Down(model=state.model, others=ClassEmbeddings(torch.cat(others)) if others else None)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, private)
        others = rows[:0] if down.others is None else down.others.vectors.to(client.backbone.device)
        fit = self.train(client, down.model, [rows], self.classification(rows, others))
        up = Up(
            model=client.backbone.state(),
            class_embeddings=ClassEmbeddings(rows),
            samples=Count(len(client.train)),
            training=Scalars({"loss": fit.loss}),
        )
        return up, Private(class_embeddings=rows)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        rows = dict(state.class_embeddings)

        def models() -> Iterator[tuple[Tensor, float]]:
            for reply in replies:
                rows[reply.client.name] = reply.up.class_embeddings
                yield reply.up.model.flat, weight_of(self.weighting, reply.up.samples.value)

        return State(model=server.aggregate_models(models(), state.model), class_embeddings=rows)
