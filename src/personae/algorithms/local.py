"""Local training: every client trains alone. This is what a federation is compared with.

server: send theta, which stays as it is
client: theta_k, W_k <- SGD on the margin loss of its own faces, from where it was, theta at first
        send the mean loss; theta_k and W_k stay
A client uses theta_k.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from personae.core.algorithm import Aggregates, Algorithm, Client, ClientInfo, Reply, Server
from personae.core.embedder import Embedder
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import ModelState, Scalars
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.local_step import LocalStep


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    """The server knows the model that every client began with."""


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    """A client receives that model."""


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    model: ModelState  # theta_k, beside W_k


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class Local(LocalStep, Algorithm[State, Down, Private, Up]):
    """Every client on its own faces alone: the clients' side of FedPE without its server.

    With the rounds and the training of a FedPE stage, a client does the work that it does there.

    The stage's shared model is the one that it began with. In a simulation, `evaluation.personal_benchmarks` also puts
    each client's own model to the server's benchmarks.
    """

    name: ClassVar[str] = "local"
    aggregates: ClassVar[Aggregates] = "nothing"

    head_init: HeadInit = "mean"  # how W_k begins when a client first takes part

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(private.model if private else down.model)
        rows = own_rows(self.head_init, client, private)
        fit = self.train(client, down.model, [rows], self.classification(rows))
        return Up(training=Scalars({"loss": fit.loss})), Private(model=client.backbone.state(), class_embeddings=rows)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:  # noqa: ARG002
        return state

    def personal(self, down: Down, private: Private | None, client: Client) -> Embedder:
        client.backbone.load(private.model if private else down.model)
        return client.embedder(client.backbone)
