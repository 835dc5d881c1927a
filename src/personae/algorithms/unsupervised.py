"""Unsupervised FedFR: learn from a labelled source and unlabelled targets (Zhuang et al., Algorithm 1, stage 3).

server: send theta
source: theta_k, W_k <- E steps on its faces and labels, with lambda/2 |theta_k - theta|^2 added to the loss (Eq. 3)
target: theta_k, W_k <- E steps on its faces and the pseudo-labels that it found
        both send theta_k; W_k and the pseudo-labels stay
server: theta <- 1/N sum_k theta_k

Stage 1 is `fedpe` with the source as its only client, stage 2 is `cluster`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from personae.algorithms import cluster
from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import ModelState, Scalars
from personae.core.samples import Samples
from personae.core.warnings import Figures
from personae.errors import ConfigError
from personae.parts.clustering import CFinch, Method, Shape
from personae.parts.heads import HeadInit, OwnHead, first_rows, own_rows
from personae.parts.local_sgd import LocalSGD
from personae.parts.local_step import LocalStep
from personae.parts.pseudo import PseudoLabelled, odd_clusters, pseudo_labels
from personae.parts.terms import Proximal

MOVE = "source_move"  # the figure that says how far the source's training took its weights in the round


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    """The server knows the backbone alone."""


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    """A client receives the backbone alone."""


@dataclass(frozen=True, kw_only=True)
class Private(LocalState):
    class_embeddings: Tensor  # W_k: an embedding for each person, or for each cluster
    labels: Tensor  # y~: the cluster of each training face, -1 for none; empty at the source


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # theta_k
    training: Scalars  # the mean loss; in rounds in which it clusters, figures of the clusters, too


@dataclass(frozen=True, kw_only=True)
class Unsupervised(LocalStep, Algorithm[State, Down, Private, Up]):
    """Domain-constrained federated learning of one labelled source client and any number of unlabelled targets."""

    name: ClassVar[str] = "unsupervised"
    figures: ClassVar[tuple[str, ...]] = ("loss", MOVE, *Shape.names())

    training: LocalSGD = field(default_factory=lambda: LocalSGD(iterations=100))  # its iterations are E
    strength: NonNegativeFloat = 0.01  # lambda; 0 for no constraint
    # Whose loss has the term: the source's (the domain constraint loss), or everybody's (FedProx).
    constrained: Literal["source", "all"] = "source"
    head_init: HeadInit = "mean"  # how W_k begins
    keep_head: bool = False  # whether the source goes on with the rows of its pre-training, where it kept some
    # A control: targets train with the labels of their faces, which only a simulation has.
    true_labels: bool = False
    # Rounds after which targets cluster again under the current model, and start W_k again; 0 never, as in the paper.
    recluster_every: NonNegativeInt = 0
    # How a target clusters if it has no pseudo-labels of an earlier stage, or clusters again. It does not take over the
    # settings of that stage.
    clustering: Annotated[Method, Field(discriminator="name")] = field(default_factory=CFinch)
    min_images: PositiveInt = 2  # a smaller cluster is dropped, and its faces are not trained on

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(term, Proximal) for term in self.terms):
            raise ValueError("the term proximal holds everybody: set strength, and constrained to say whom")

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return "all" if self.true_labels else "source"

    def start(self, previous: ServerState | None, server: Server) -> State:
        if self.strength and self.constrained == "source" and not any(client.source for client in server.clients):
            raise ConfigError(
                "unsupervised: strength constrains the source client, and there is none in this stage; "
                'divide the faces with [partition] by = "domain", or set strength = 0'
            )
        return State(model=previous.model if previous else server.initial)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        again = self.recluster_every > 0 and client.round > 1 and (client.round - 1) % self.recluster_every == 0
        labelled = client.info.source or self.true_labels
        known = None if again and not labelled else private
        labels, shape = (known.labels, None) if known else self.labels(client, again, labelled)
        samples: Samples = client.train if labelled else PseudoLabelled(client.train, labels)
        if known:
            rows = known.class_embeddings.to(client.backbone.device, copy=True)
        else:
            kept = client.recall(OwnHead) if self.keep_head and client.info.source else None
            rows = (
                own_rows(self.head_init, client, kept)
                if kept
                else first_rows(self.head_init, client.backbone, samples, client.generator)
            )
            client.carried.head_momentum = None  # the momentum of other rows
        held = self.strength > 0 and (client.info.source or self.constrained == "all")
        constraint = [Proximal(weight=self.strength)] if held else []
        fit = self.train(client, down.model, [rows], self.classification(rows), *constraint, samples=samples)
        figures = {"loss": fit.loss, **(shape.figures() if shape else {})}
        if client.info.source:
            figures[MOVE] = _distance(client.backbone.state(), down.model)
        up = Up(model=client.backbone.state(), training=Scalars(figures))
        return up, Private(class_embeddings=rows, labels=labels)

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        return State(model=server.aggregate_models(((reply.up.model.flat, 1.0) for reply in replies), state.model))

    def warnings(self, figures: Figures) -> Iterator[str]:
        yield from super().warnings(figures)
        yield from odd_clusters(figures)

    def labels(self, client: Client, again: bool, labelled: bool) -> tuple[Tensor, Shape | None]:
        """Those that the client found in an earlier stage, or new ones under the model that it has just received."""
        if labelled:
            return torch.empty(0, dtype=torch.int64), None
        kept = None if again else client.recall(cluster.Private)
        if kept:
            return kept.labels, None
        embedder = client.embedder(client.backbone)
        return pseudo_labels(client.train, embedder, self.clustering, self.min_images, client.generator)


def _distance(one: ModelState, other: ModelState) -> float:
    """Between the weights of two models; the statistics of BatchNorm are none."""
    trained = one.layout.trainable_size
    return float((one.flat[:trained] - other.flat[:trained].to(one.flat.device)).norm())
