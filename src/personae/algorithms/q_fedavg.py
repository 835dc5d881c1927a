"""q-FedAvg: clients with a higher loss weigh more (Li, Sanjabi, Beirami and Smith, Algorithm 2), with private rows.

server: send w
client: F_k <- its loss under w, before any training
        w_k, a_k <- SGD on the margin loss of its own faces, from w and the class embeddings a_k it kept
        send w_k, F_k and n_k; a_k stays
server: Delta_k <- F_k^q L (w - w_k),   h_k <- q F_k^(q-1) |L (w - w_k)|^2 + L F_k^q
        w <- w - sum_k p_k Delta_k / sum_k p_k h_k,   p_k = n_k / sum n
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.algorithms.fedpe import Down, Private, State, Up
from personae.core.algorithm import Aggregates, Algorithm, Client, ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.bounds import NonNegativeFloat, PositiveFloat
from personae.core.message import ServerState
from personae.core.payload import Count, Scalars
from personae.core.samples import Samples
from personae.errors import Diverged
from personae.parts.averaging import Weighting, weight_of
from personae.parts.heads import HeadInit, own_rows
from personae.parts.images import normalise
from personae.parts.local_step import LocalStep
from personae.parts.margins import Margin

BEFORE = "before"  # the figure that carries F_k
SURE = 0.01  # with q below 1, no lower loss holds the step back by more: one client that claims none would end it


@dataclass(frozen=True, kw_only=True)
class QFedAvg(LocalStep, Algorithm[State, Down, Private, Up]):
    """Fair federated averaging: a client with a higher loss moves the model more.

    F_k is the margin loss alone, without `terms`. The server has to believe the losses: a client that claims a high one
    moves the model more than its share.
    """

    name: ClassVar[str] = "q_fedavg"
    figures: ClassVar[tuple[str, ...]] = ("loss", BEFORE)
    aggregates: ClassVar[Aggregates] = "mean"  # its step is a mean whose weights are the point of it

    # how much a high loss counts; 0 is FedPE, and the paper picks from 0.001 to 15 by validation
    q: NonNegativeFloat = 1.0
    # L; if left out, 1 / the rate of training in the round, as in the paper. Its clients have no momentum m, which in
    # the end makes a step 1 / (1 - m) times as long: with it, L is (1 - m) / the rate.
    lipschitz: PositiveFloat | None = None
    # p_k: by samples, or uniform, which is right where clients are drawn with a chance in proportion to their samples.
    weighting: Weighting = "samples"
    head_init: HeadInit = "mean"  # how a_k begins when a client first takes part

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial)

    def send(self, state: State, client: ClientInfo) -> Down:  # noqa: ARG002
        return Down(model=state.model)

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, private)
        before = mean_loss(client.backbone, self.margin, rows, client.train)
        fit = self.train(client, down.model, [rows], self.classification(rows))
        figures = Scalars({"loss": fit.loss, BEFORE: before})
        up = Up(model=client.backbone.state(), samples=Count(len(client.train)), training=figures)
        return up, Private(class_embeddings=rows)

    def objection(self, up: Up) -> str | None:
        """A loss counts for as much as it claims, so it must be one that the margin can have."""
        if problem := super().objection(up):
            return problem
        before, most = up.training.values.get(BEFORE, 0.0), self.margin.largest_loss
        return f"its loss is {before:.3g}, and {most:.3g} is the most that there can be" if before > most else None

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        """The step above, as the mean it is: of every w_k with p_k L F_k^q, and of w with the rest of each h_k."""
        w, trained = state.model.flat, state.model.layout.trainable_size
        sgd = self.training
        L = self.lipschitz or (1 - sgd.momentum) / sgd.rate_of(server.round, server.rounds)

        def models() -> Iterator[tuple[Tensor, float]]:
            stay = 0.0
            for reply in replies:
                p = weight_of(self.weighting, reply.up.samples.value)
                F = max(reply.up.training.values.get(BEFORE, 0.0), 0.0) + 1e-10
                least = SURE if self.q < 1 else 0.0  # where q - 1 is a negative power
                way = (w - reply.up.model.flat.to(w.device))[:trained]  # statistics of BatchNorm are no weights
                stay += p * self.q * max(F, least) ** (self.q - 1) * L**2 * float(way.square().sum())
                yield reply.up.model.flat, p * L * F**self.q
            yield w, stay

        try:
            return State(model=server.aggregate_models(models(), state.model))
        except ArithmeticError as error:
            raise Diverged(f"q_fedavg: a loss to the power of q = {self.q} is beyond all bounds; lower q") from error


@torch.no_grad()
def mean_loss(backbone: Backbone, margin: Margin, rows: Tensor, samples: Samples, batch: int = 256) -> float:
    """The mean loss over all samples, as they are, under the backbone in evaluation mode."""
    module, total = backbone.module.eval(), 0.0
    for start in range(0, len(samples), batch):
        positions = torch.arange(start, min(start + batch, len(samples)))
        features = module(normalise(samples.images(positions).to(backbone.device)))
        labels = samples.labels[positions].to(backbone.device)
        total += len(positions) * float(margin.loss(features, rows, labels))
    return total / max(1, len(samples))
