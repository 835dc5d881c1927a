"""The local step, written once: a client trains the model that it received, on a loss that is a sum of terms.

The first is the algorithm's own, such as the margin loss over its class embeddings. Any others come from `terms`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from personae.core.algorithm import Client
from personae.core.backbone import Backbone
from personae.core.payload import ModelState
from personae.core.samples import Samples
from personae.parts.batch_norm import Statistics, keeps_statistics
from personae.parts.batches import Batch
from personae.parts.local_sgd import Fit, LocalSGD
from personae.parts.margins import Margin
from personae.parts.terms import Term, Value


@dataclass(frozen=True, eq=False)
class Objective:
    """The sum of an algorithm's own loss and of weighted terms, all of the same embeddings."""

    module: nn.Module
    own: Value
    terms: tuple[tuple[float, Value], ...]

    def __call__(self, batch: Batch) -> Tensor:
        features = self.module(batch.images)
        total = self.own(batch, features)
        for weight, term in self.terms:
            total = total + weight * term(batch, features)
        return total


@dataclass(frozen=True, kw_only=True)
class LocalObjective:
    """What a client minimises: an algorithm inherits it for its options."""

    margin: Margin = field(default_factory=Margin)  # the loss that tells a client's people apart
    terms: tuple[Term, ...] = ()  # added to the loss, such as { name = "proximal", weight = 0.01 }

    def classification(self, *rows: Tensor) -> Value:
        """The margin loss over class embeddings; where they come in several parts, labels count through these."""
        margin = self.margin

        def loss(batch: Batch, features: Tensor) -> Tensor:
            return margin.loss(features, rows[0] if len(rows) == 1 else torch.cat(rows), batch.labels)

        return loss

    def objective(self, backbone: Backbone, received: ModelState, own: Value, *more: Term) -> Objective:
        """The algorithm's own loss with the terms, and `more` of them, against the model received."""
        terms = tuple((term.weight, term.begin(backbone, received)) for term in (*self.terms, *more))
        return Objective(backbone.module, own, terms)


@dataclass(frozen=True, kw_only=True)
class LocalStep(LocalObjective):
    """A client's training by SGD on such an objective: an algorithm inherits it for its options."""

    training: LocalSGD = field(default_factory=LocalSGD)  # how a client trains in a round
    # Whether a client normalises by the statistics of BatchNorm that it received, and hands them on untouched: never
    # (train), where all faces are of one person, whose identity their mean would take away (auto), or always (eval).
    batch_norm: Statistics = "train"

    def train(
        self,
        client: Client,
        received: ModelState,
        others: Sequence[Tensor],
        own: Value,
        *more: Term,
        samples: Samples | None = None,
    ) -> Fit:
        """Train the client's backbone as it is loaded, and the `others` such as class embeddings, in place.

        The faces are the client's own unless `samples` are given.
        """
        objective = self.objective(client.backbone, received, own, *more)
        faces = client.train if samples is None else samples
        kept = keeps_statistics(self.batch_norm, faces)
        return self.training.train(client, others, faces, objective, frozen_statistics=kept)
