"""Poisoned rows: class embeddings that stand where everybody else's do."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from personae.attacks.attack import Attack, Scene, Sent
from personae.core.algorithm import AnyAlgorithm
from personae.core.layer import recast
from personae.core.message import Message
from personae.core.payload import ClassEmbeddings


@dataclass(frozen=True, kw_only=True)
class PoisonedRows(Attack):
    """All rows of an attacker are the mean direction of honest rows, at the length of its own times `scale`.

    A server that pushes classes apart then pushes everybody away from where they were.
    """

    name: ClassVar[str] = "poisoned-rows"

    def check(self, algorithm: AnyAlgorithm) -> None:
        sent = {name: kind for name, kind in algorithm.types.up.kinds().items() if name not in algorithm.withheld}
        if ClassEmbeddings not in sent.values():
            raise ValueError(f"clients of {algorithm.name} send no class embeddings")

    def answer(self, sent: Sent, scene: Scene) -> Message:
        changed: dict[str, Any] = {}
        for name, kind in sent.up.kinds().items():
            if kind is ClassEmbeddings and (own := getattr(sent.up, name)) is not None:
                theirs = [getattr(each.up, name).vectors for each in scene.others or scene.attackers]
                middle = F.normalize(F.normalize(torch.cat(theirs), dim=1).sum(0), dim=0)
                lengths = own.vectors.norm(dim=1, keepdim=True)
                changed[name] = ClassEmbeddings(self.scale * lengths * middle)
        return recast(type(sent.up), sent.up, **changed)
