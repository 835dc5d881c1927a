"""Pseudo-labels: every target client divides its own faces by identity (Zhuang et al., Algorithm 1, stage 2).

server: send theta, the model trained at the source
target: v <- f_theta(x) of its own faces; y~ <- clusters of v; both stay
        send how many clusters it found
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from personae.core.algorithm import Aggregates, Algorithm, Client, ClientInfo, Reply, Server
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import Scalars
from personae.parts.clustering import NOBODY, CFinch, Method, agreement
from personae.parts.pseudo import pseudo_labels


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    """The server knows the backbone alone."""


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    """A client receives the backbone alone."""


@dataclass(frozen=True, kw_only=True)
class Private(LocalState):
    labels: Tensor  # y~: the cluster of each training face, -1 for none; empty at the source, which has true labels


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    figures: Scalars  # of the clusters: how many, and the share of the faces that are in one


@dataclass(frozen=True, kw_only=True)
class Cluster(Algorithm[State, Down, Private, Up]):
    """Target clients cluster their own faces under the model they receive; it is a stage of one round.

    `clustering`: the method that divides the faces. `min_images`: a smaller cluster is dropped, and its faces are not
    trained on; the paper does not say. `judged`: whether clients compare the clusters with the labels of their faces,
    which only a simulation has, and send the figures of that, too.
    """

    name: ClassVar[str] = "cluster"
    aggregates: ClassVar[Aggregates] = "nothing"

    clustering: Annotated[Method, Field(discriminator="name")] = field(default_factory=CFinch)
    min_images: int = 2
    judged: bool = False

    def __post_init__(self) -> None:
        if self.min_images < 1:
            raise ValueError("min_images must be at least 1")

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return "all" if self.judged else "none"

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:  # noqa: ARG002
        if client.info.source:
            return Up(figures=Scalars({})), Private(labels=torch.empty(0, dtype=torch.int64))
        client.backbone.load(down.model)
        embedder = client.embedder(client.backbone)
        labels = pseudo_labels(client.train, embedder, self.clustering, self.min_images, client.generator)
        figures = {
            "clusters": float(labels.max() + 1),
            "pseudo-labels/clustered": float((labels != NOBODY).double().mean()),
        }
        if self.judged:
            found = agreement(labels, client.train.labels)
            judgement = {
                "f_score": found.f_score,
                "precision": found.precision,
                "recall": found.recall,
                "nmi": found.nmi,
            }
            figures |= {f"pseudo-labels/{name}": value for name, value in judgement.items()}
            figures["people"] = client.train.classes
        return Up(figures=Scalars(figures)), Private(labels=labels)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:  # noqa: ARG002
        return state
