"""FedFR: a better generic model and a personal one for every client, at once (Liu, Wang, Chien and Lai, Algorithm 1).

server: send theta and Phi, the class embeddings of the public people
client: D_HN <- the public faces that are nearer than t_HN to any of its own, under theta
        theta_i, Phi_i, W_i, Pi_i, Omega_i <- SGD over its own faces and D_HN, from theta, Phi and what it kept, on
            alpha_1 CosFace over [W_i || Phi_i] (Eq. 3)
            + alpha_2 contrastive: near theta, away from its own theta_i of last time (Eq. 5)
            + alpha_3 one-vs-all over Omega_i, of features transformed by Pi_i (Eq. 6)
        send theta_i, Phi_i and n_i; W_i, Pi_i and Omega_i stay
server: theta <- sum_i n_i theta_i / sum_i n_i (Eq. 2)
        Phi <- sum_i n_i Phi_i / sum_i n_i (Eq. 4)
A client uses theta_i followed by Pi_i.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.bounds import NonNegativeFloat, PositiveFloat
from personae.core.embedder import Embedder
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import Count, ModelState, PublicEmbeddings, Scalars
from personae.core.samples import Samples
from personae.core.warnings import Figures
from personae.parts.averaging import Weighting, weight_of
from personae.parts.batch_norm import Statistics
from personae.parts.batches import Batch
from personae.parts.customisation import Branch
from personae.parts.embedding import copied, still
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.local_step import LocalStep
from personae.parts.margins import Margin
from personae.parts.objectives import OneVsAll, contrastive
from personae.parts.public import PublicSampling

SHARE = "public_share"  # of the public faces that are hard negatives, as clients report it
COLLAPSED = 0.5  # such a share of hard negatives is no choice any more


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    public_embeddings: PublicEmbeddings | None  # Phi; None where no public faces are used

    def public_vectors(self) -> Tensor | None:
        return self.public_embeddings.vectors if self.public_embeddings else None


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    public_embeddings: PublicEmbeddings | None  # Phi


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    """W_i, and what makes the client's personal model."""

    model: ModelState  # theta_i, as it was sent: next time's previous model, and the backbone of the personal one
    branch: dict[str, Tensor]  # Pi_i, Omega_i and b_i; empty without a branch


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # theta_i
    public_embeddings: PublicEmbeddings | None  # Phi_i
    samples: Count  # n_i
    training: Scalars  # the mean loss, and the share of the public faces that were used


@dataclass(frozen=True, kw_only=True)
class FedFR(LocalStep, Algorithm[State, Down, Private, Up]):
    """Federated averaging that trains with hard public negatives, stays near the global model, and personalizes.

    A client that takes part for the first time has no previous model. Taken to be the one it was given, as the paper
    initialises it, that model would make the contrastive term a constant, so it is left out. (In the authors' code it
    is a network with random weights.)
    """

    name: ClassVar[str] = "fedfr"
    figures: ClassVar[tuple[str, ...]] = ("loss", SHARE)

    use_public_faces: bool = True  # whether clients train with public faces beside their own; without, there is no Phi
    sampling: PublicSampling = field(default_factory=PublicSampling)  # with which public faces, by t_HN
    classify: PositiveFloat = 1.0  # alpha_1, the weight of the classification, CosFace with s and m
    contrast: NonNegativeFloat = 5.0  # alpha_2, the weight of the contrastive term; 0 leaves it out
    customise: NonNegativeFloat = 10.0  # alpha_3, the weight of the branch; 0 leaves it out
    temperature: PositiveFloat = 0.5  # tau of the contrastive term
    one_vs_all: OneVsAll = field(default_factory=OneVsAll)  # s', m', lambda and t of the binary loss
    # What trains the branch: the binary loss, or the paper's variant, CosFace among the client's own people. That has
    # the same s' and m' and is divided by s' like Eq. 6, so that alpha_3 weighs both alike.
    branch: Literal["binary", "cosface"] = "binary"
    transformed: bool = True  # whether the personal model is theta_i followed by Pi_i, or theta_i alone
    head_init: HeadInit = "mean"  # how W_i begins; Omega_i begins as a copy, and Pi_i as the identity
    weighting: Weighting = "samples"  # of the averages: by samples, n_i as above, or uniform
    counts: Literal["own", "all"] = "own"  # what n_i counts: own faces, or sampled ones too, as in the authors' code
    # Statistics of a few people's batches are not those that everybody is to be recognised with. With eval, a client
    # normalises by those that it received and hands them on untouched; train never does so, and auto only where its
    # faces, with the public ones it chose, are all of one person: there the mean of a batch is the identity. The
    # paper's network has no BatchNorm.
    batch_norm: Statistics = "auto"

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
        device = client.backbone.device
        samples, share = self.samples(down.model, client)
        anchors: tuple[nn.Module, ...] = ()
        if self.contrast and private:
            previous = still(client.backbone, private.model, "previous")
            anchors = still(client.backbone, down.model, "global"), previous
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, private)
        phi = (
            down.public_embeddings.vectors.to(device, copy=True)
            if down.public_embeddings
            else rows.new_empty(0, rows.shape[1])
        )
        branch = self.branch_of(private, rows) if self.customise else None
        classification = self.classification(rows, phi)

        def loss(batch: Batch, features: Tensor) -> Tensor:
            total = self.classify * classification(batch, features)
            if anchors:
                near, far = (anchor(batch.images) for anchor in anchors)
                total = total + self.contrast * contrastive(features, near, far, self.temperature)
            if branch:
                total = total + self.customise * self.branch_loss(branch, features, batch.labels)
            return total

        parts = branch.parts if branch else {}
        fit = self.train(
            client,
            down.model,
            [rows, *([phi] if len(phi) else []), *parts.values()],
            loss,
            samples=samples,
        )
        model = client.backbone.state()
        up = Up(
            model=model,
            public_embeddings=PublicEmbeddings(phi) if len(phi) else None,
            samples=Count(len(samples) if self.counts == "all" else len(client.train)),
            training=Scalars({"loss": fit.loss, **share}),
        )
        return up, Private(model=model, class_embeddings=rows, branch=parts)

    def samples(self, model: ModelState, client: Client) -> tuple[Samples, dict[str, float]]:
        """The client's own faces with D_HN, and which share of the public faces that is."""
        if not self.use_public_faces:
            return client.train, {}
        joined = self.sampling.join(client, model, self.margin)
        return joined, {SHARE: len(joined.chosen) / len(joined.second)}

    def branch_of(self, private: Private | None, rows: Tensor) -> Branch:
        if private and private.branch:
            return Branch(**{name: part.to(rows.device, copy=True) for name, part in private.branch.items()})
        return Branch.beginning(rows)

    def branch_loss(self, branch: Branch, features: Tensor, labels: Tensor) -> Tensor:
        """Public people have labels beyond the classifiers: negatives of all of them, or of no use to CosFace."""
        personal = branch(features)
        if self.branch == "binary":
            return self.one_vs_all.loss(personal, branch.classifiers, branch.bias.flatten(), labels)
        own, people = labels < len(branch.classifiers), labels.clamp(max=len(branch.classifiers) - 1)
        cosface = Margin(scale=self.one_vs_all.scale, margin=self.one_vs_all.margin)
        losses = F.cross_entropy(cosface.logits(personal, branch.classifiers, people), people, reduction="none")
        return (losses * own).sum() / own.sum().clamp(min=1) / cosface.scale

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        vectors = (
            (
                _joined(reply.up.model, reply.up.public_embeddings or state.public_embeddings),
                weight_of(self.weighting, reply.up.samples.value),
            )
            for reply in replies
        )
        joined, layout = server.aggregate(vectors, _joined(state.model, state.public_embeddings)), state.model.layout
        model = ModelState(layout, joined[: layout.size].clone())
        if state.public_embeddings is None:
            return State(model=model, public_embeddings=None)
        return State(
            model=model,
            public_embeddings=PublicEmbeddings(joined[layout.size :].view_as(state.public_embeddings.vectors).clone()),
        )

    def personal(self, down: Down, private: Private | None, client: Client) -> Embedder:
        if private is None:
            return super().personal(down, private, client)
        module = copied(client.backbone, private.model)
        if private.branch and self.transformed:
            branch = self.branch_of(private, private.class_embeddings.to(client.backbone.device))
            module = branch.after(module)
        backbone = client.backbone
        return client.embedder(Backbone(module, backbone.width, backbone.device, backbone.acceleration))

    def warnings(self, figures: Figures) -> Iterator[str]:
        """A model that tells few people apart takes most of the public faces for hard negatives."""
        yield from super().warnings(figures)
        share, before = figures.now.get(SHARE, 0.0), figures.before.get(SHARE, 0.0)
        if not self.sampling.takes_all and share > COLLAPSED and share > 2 * before:
            was = f"; in the round before it was {before:.0%}" if SHARE in figures.before else ""
            yield (
                f"the share of public faces taken for hard negatives is {share:.0%}{was}: the model tells few people "
                "apart; lower the learning rate, or start from a model that was trained longer"
            )


def _joined(model: ModelState, public: PublicEmbeddings | None) -> Tensor:
    """theta_i and Phi_i as one vector, so that one pass averages both; who sends no Phi_i leaves Phi as it is known."""
    if public is None:
        return model.flat
    return torch.cat([model.flat, public.vectors.flatten().to(model.flat.device)])
