"""FedAvg with a global classification layer: the backbone and everybody's class embeddings are averaged.

server: send w, and to client k its own rows a_k of the layer a
client: w_k, a_k <- SGD on the margin loss of its own faces, foreign classes masked with -infinity, from w and a_k
        send w_k, a_k and n_k
server: w <- sum_k n_k w_k / sum_k n_k
        a <- sum_k n_k (a with client k's rows where it took them) / sum_k n_k

To mask a foreign logit with -infinity is to leave it out of the softmax, and rows without a logit do not move. So a
client is sent its own rows alone and computes the very same; as papers write it, it would get a template of everybody.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.parts.averaging import Weighting, weight_of
from personae.parts.heads import HeadInit, OwnHead, average_layer, own_rows
from personae.parts.local_step import LocalStep


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    class_embeddings: dict[str, ClassEmbeddings]  # a, in the rows of every client seen so far


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    class_embeddings: ClassEmbeddings | None  # the client's own rows of a; None before the server has seen them


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    """a_k as the client last had it."""


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # w_k
    class_embeddings: ClassEmbeddings  # a_k
    samples: Count  # n_k
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalStep, Algorithm[State, Down, Private, Up]):
    """Federated averaging of the backbone and of a classification layer over all clients' classes.

    Averaged over all clients, a row goes n_k / sum n of the way that its client took it. Averaged over its holders
    alone it would be the client's own row, and the algorithm FedPE with templates sent for nothing.
    """

    name: ClassVar[str] = "fedavg"

    weighting: Weighting = "samples"  # of the averages: by samples, n_k as above, or uniform
    head_init: HeadInit = "random"  # how a_k begins when a client first takes part

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial, class_embeddings={})

    def send(self, state: State, client: ClientInfo) -> Down:
        return Down(model=state.model, class_embeddings=state.class_embeddings.get(client.name))

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, down.class_embeddings, private)
        fit = self.train(client, down.model, [rows], self.classification(rows))
        up = Up(
            model=client.backbone.state(),
            class_embeddings=ClassEmbeddings(rows),
            samples=Count(len(client.train)),
            training=Scalars({"loss": fit.loss}),
        )
        return up, Private(class_embeddings=rows)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        return merged(state, replies, self.weighting, server)


def merged(state: State, replies: Iterable[Reply[Up]], weighting: Weighting, server: Server) -> State:
    """The backbones in one, and the mean of the layers, in which a client moves its own rows alone."""
    heard: dict[str, tuple[Tensor, float]] = {}

    def models() -> Iterator[tuple[Tensor, float]]:
        for reply in replies:
            weight = weight_of(weighting, reply.up.samples.value)
            heard[reply.client.name] = reply.up.class_embeddings.vectors, weight
            yield reply.up.model.flat, weight

    model = server.aggregate_models(models(), state.model)
    layer = average_layer({name: kept.vectors for name, kept in state.class_embeddings.items()}, heard)
    return State(model=model, class_embeddings={name: ClassEmbeddings(rows) for name, rows in layer.items()})
