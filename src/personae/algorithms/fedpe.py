"""FedPE: federated averaging of the backbone with private class embeddings.

server: send theta to every client asked
client: theta_k, W_k <- SGD on the margin loss of its own faces, from theta and the W_k it kept
        send theta_k and n_k; W_k stays
server: theta <- sum_k n_k theta_k / sum_k n_k
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import Count, ModelState, Scalars
from personae.parts.averaging import Weighting, weight_of
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.local_step import LocalStep


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    """The server knows the backbone alone."""


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    """A client receives the backbone alone."""


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    """W_k: the client's class embeddings."""


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # theta_k
    samples: Count  # n_k
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class FedPE(LocalStep, Algorithm[State, Down, Private, Up]):
    """Federated averaging with private class embeddings."""

    name: ClassVar[str] = "fedpe"

    weighting: Weighting = "samples"  # of the average: by samples, n_k as above, or uniform
    head_init: HeadInit = "mean"  # how W_k begins when a client first takes part
    # Later rounds begin with the W_k that the client kept, or with a new one as head_init says, under the new theta.
    head: Literal["kept", "renewed"] = "kept"

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, private if self.head == "kept" else None)
        fit = self.train(client, down.model, [rows], self.classification(rows))
        up = Up(model=client.backbone.state(), samples=Count(len(client.train)), training=Scalars({"loss": fit.loss}))
        return up, Private(class_embeddings=rows)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        models = ((reply.up.model.flat, weight_of(self.weighting, reply.up.samples.value)) for reply in replies)
        return State(model=server.aggregate_models(models, state.model))
