"""Class embeddings: one row for each identity, how they begin, and how a layer of all clients' rows is averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.algorithm import Client
from personae.core.backbone import Backbone
from personae.core.message import LocalState
from personae.core.payload import ClassEmbeddings
from personae.core.samples import Samples
from personae.parts.embedding import class_features

HeadInit = Literal["random", "mean"]


@dataclass(frozen=True, kw_only=True)
class OwnHead(LocalState):
    """What a client keeps of a classification layer; a later stage recalls it, whichever algorithm left it."""

    class_embeddings: Tensor  # its class embeddings as it last had them


def first_rows(head_init: HeadInit, backbone: Backbone, samples: Samples, generator: torch.Generator) -> Tensor:
    """Rows of length one: in random directions, or each class's mean feature under the backbone as it is.

    A class without images here (all of a person's are for tests) has no mean. Its row is random, too: a row of zeros
    has no direction, and the gradient of a cosine with it no bound.
    """
    if head_init == "mean":
        rows = class_features(backbone, samples)
        empty = torch.bincount(samples.labels.cpu(), minlength=samples.classes) == 0
        if empty.any():
            rows[empty.to(rows.device)] = _directions(int(empty.sum()), backbone, generator)
        return rows
    return _directions(samples.classes, backbone, generator)


def _directions(count: int, backbone: Backbone, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(count, backbone.width, generator=generator), dim=1).to(backbone.device)


def own_rows(head_init: HeadInit, client: Client, *known: ClassEmbeddings | OwnHead | None) -> Tensor:
    """What a client goes on with: its rows as the server or it last had them, the first that is known, or new ones."""
    for each in known:
        if each is not None:
            vectors = each.vectors if isinstance(each, ClassEmbeddings) else each.class_embeddings
            return vectors.to(client.backbone.device, copy=True)
    return first_rows(head_init, client.backbone, client.train, client.generator)


def average_layer(known: Mapping[str, Tensor], heard: Mapping[str, tuple[Tensor, float]]) -> dict[str, Tensor]:
    """The mean of a classification layer over the clients heard, sum_k w_k a_k / sum_k w_k, in the rows of each client.

    `known` are the rows of every client before the round, `heard` those that came back, with weights w_k. A client that
    masks foreign logits with -infinity leaves the rows of the others as they are. So in the mean of whole layers its
    own rows go w_k / sum w of the way to where it took them, and nobody needs to be sent anybody else's to find out.
    Rows that were not known yet are taken as they come.
    """
    total = sum(weight for _, weight in heard.values())
    moved = dict(known)
    for client, (rows, weight) in heard.items():
        before = known.get(client)
        if before is None or before.shape != rows.shape:
            moved[client] = rows
        else:
            moved[client] = before.lerp(rows.to(before.device), weight / total)
    return moved
