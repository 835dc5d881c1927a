"""Pseudo-labels: every target client divides its own faces by identity (Zhuang et al., Algorithm 1, stage 2).

server: send theta, the model trained at the source
target: v <- f_theta(x) of its own faces; y~ <- clusters of v; both stay
        send how many clusters it found, how large they are and how far apart
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from personae.core.algorithm import Aggregates, Algorithm, Client, ClientInfo, Reply, Server
from personae.core.bounds import PositiveInt
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import Scalars
from personae.core.warnings import Figures
from personae.errors import DataError
from personae.parts.clustering import CFinch, Method, Shape, agreement
from personae.parts.pseudo import odd_clusters, pseudo_labels

COMPARED = ("f_score", "precision", "recall", "nmi")  # with the people that there are


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
    figures: Scalars  # of the clusters: how many, how large, how far apart, and the share of the faces that are in one


@dataclass(frozen=True, kw_only=True)
class Cluster(Algorithm[State, Down, Private, Up]):
    """Target clients cluster their own faces under the model they receive; it is a stage of one round."""

    name: ClassVar[str] = "cluster"
    figures: ClassVar[tuple[str, ...]] = (
        *Shape.names(),
        *(f"pseudo-labels/{name}" for name in ("clustered", *COMPARED)),
        "people",
    )
    aggregates: ClassVar[Aggregates] = "nothing"

    # The method that divides the faces.
    clustering: Annotated[Method, Field(discriminator="name")] = field(default_factory=CFinch)
    # a smaller cluster is dropped, and its faces are not trained on; the paper does not say
    min_images: PositiveInt = 2
    # Whether clusters that can hardly be people are only warned about, or stop the run.
    if_odd: Literal["warn", "stop"] = "warn"
    # Whether clients compare the clusters with the labels of their faces, which only a simulation has, and send the
    # figures of that, too.
    evaluated: bool = False

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return "all" if self.evaluated else "none"

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:  # noqa: ARG002
        if client.info.source:
            return Up(figures=Scalars({})), Private(labels=torch.empty(0, dtype=torch.int64))
        client.backbone.load(down.model)
        embedder = client.embedder(client.backbone)
        labels, shape = pseudo_labels(client.train, embedder, self.clustering, self.min_images, client.generator)
        figures = {**shape.figures(), "pseudo-labels/clustered": 1 - shape.outside}
        if self.evaluated:
            found = agreement(labels, client.train.labels)
            figures |= {f"pseudo-labels/{name}": getattr(found, name) for name in COMPARED}
            figures["people"] = client.train.classes
        return Up(figures=Scalars(figures)), Private(labels=labels)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:  # noqa: ARG002
        told = {reply.client.name: reply.up.figures.values for reply in replies}
        if self.if_odd == "stop" and (odd := list(odd_clusters(Figures({}, clients=told)))):
            raise DataError(f"cluster: {odd[0]}" + (f" (and {len(odd) - 1} more like it)" if len(odd) > 1 else ""))
        return state

    def warnings(self, figures: Figures) -> Iterator[str]:
        yield from odd_clusters(figures)
