"""HF-MAML: a global model that adapts to each client in a few steps (Gansekoele, Hess and Bhulai, Algorithm 1).

server: send w
client: w_k, a_k <- w and the classification layer a_k it kept; then, step after step,
            D, D', D'' <- batches of its own faces, and F = margin loss + C (1 - cos(f_begin(x), f(x)))   (Eq. 4)
            (w~, a~)   <- (w_k, a_k) - alpha grad F(w_k, a_k; D)                                           (Eq. 2)
            (w_k, a_k) <- (w_k, a_k) - beta [I - alpha H(D'')] grad F(w~, a~; D')                     (Eqs. 1 and 3)
        send w_k and n_k; a_k stays
server: w <- sum_k n_k w_k / sum_k n_k

With a global classification layer a_k goes up with w_k, and the layer is averaged like the backbone, as in FedAvg.
Tuning the global model at each client, which is what it is trained for, is a stage of its own (`tune`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from personae.algorithms import fedavg, fedpe
from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.message import ServerState
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.parts.averaging import Weighting, weight_of
from personae.parts.heads import HeadInit, own_rows
from personae.parts.local_step import LocalObjective
from personae.parts.margins import Margin
from personae.parts.meta import MetaFit, MetaSGD


@dataclass(frozen=True, kw_only=True)
class _MetaStep(LocalObjective):
    """A client's meta steps on F. The second term of Eq. 4 is `embedding-regularisation`; its C is not in the paper."""

    # The loss that tells a client's people apart, as in the paper.
    margin: Margin = field(default_factory=lambda: Margin(kind="arcface", scale=8.0, margin=0.5))
    meta: MetaSGD = field(default_factory=MetaSGD)  # the meta steps, with alpha, beta and delta
    weighting: Weighting = "samples"  # of the averages: by samples, n_k as above, or uniform
    head_init: HeadInit = "random"  # how a_k begins when a client first takes part

    def meta_train(self, client: Client, received: ModelState, rows: Tensor) -> MetaFit:
        """From the model loaded and these rows, in place."""
        objective = self.objective(client.backbone, received, self.classification(rows))
        return self.meta.fit(client.backbone, [rows], client.train, objective, client.generator)


@dataclass(frozen=True, kw_only=True)
class HFMAML(_MetaStep, Algorithm[fedpe.State, fedpe.Down, fedpe.Private, fedpe.Up]):
    """Meta-learning over clients with local classification layers: what crosses and what is kept is as in FedPE."""

    name: ClassVar[str] = "hf_maml"
    figures: ClassVar[tuple[str, ...]] = ("loss", "adapted")

    def start(self, previous: ServerState | None, server: Server) -> fedpe.State:
        return fedpe.State(model=previous.model if previous else server.initial)

    def send(self, state: fedpe.State, client: ClientInfo) -> fedpe.Down:  # noqa: ARG002
        return fedpe.Down(model=state.model)

    def local(self, down: fedpe.Down, private: fedpe.Private | None, client: Client) -> tuple[fedpe.Up, fedpe.Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, private)
        fit = self.meta_train(client, down.model, rows)
        up = fedpe.Up(
            model=client.backbone.state(),
            samples=Count(len(client.train)),
            training=Scalars({"loss": fit.loss, "adapted": fit.adapted}),
        )
        return up, fedpe.Private(class_embeddings=rows)

    def merge(self, state: fedpe.State, replies: Iterable[Reply[fedpe.Up]], server: Server) -> fedpe.State:
        models = ((reply.up.model.flat, weight_of(self.weighting, reply.up.samples.value)) for reply in replies)
        return fedpe.State(model=server.aggregate_models(models, state.model))


@dataclass(frozen=True, kw_only=True)
class HFMAMLGlobal(_MetaStep, Algorithm[fedavg.State, fedavg.Down, fedavg.Private, fedavg.Up]):
    """Meta-learning over clients with a global classification layer: templates cross as in FedAvg."""

    name: ClassVar[str] = "hf_maml_global"
    figures: ClassVar[tuple[str, ...]] = ("loss", "adapted")

    def start(self, previous: ServerState | None, server: Server) -> fedavg.State:
        return fedavg.State(model=previous.model if previous else server.initial, class_embeddings={})

    def send(self, state: fedavg.State, client: ClientInfo) -> fedavg.Down:
        return fedavg.Down(model=state.model, class_embeddings=state.class_embeddings.get(client.name))

    def local(
        self, down: fedavg.Down, private: fedavg.Private | None, client: Client
    ) -> tuple[fedavg.Up, fedavg.Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, down.class_embeddings, private)
        fit = self.meta_train(client, down.model, rows)
        up = fedavg.Up(
            model=client.backbone.state(),
            class_embeddings=ClassEmbeddings(rows),
            samples=Count(len(client.train)),
            training=Scalars({"loss": fit.loss, "adapted": fit.adapted}),
        )
        return up, fedavg.Private(class_embeddings=rows)

    def merge(self, state: fedavg.State, replies: Iterable[Reply[fedavg.Up]], server: Server) -> fedavg.State:
        return fedavg.merged(state, replies, self.weighting, server)
