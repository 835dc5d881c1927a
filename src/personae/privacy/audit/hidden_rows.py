"""Vectors of people that are hidden in weights: a client, or a method, that sends its rows as part of a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.core.payload import NetworkVector
from personae.privacy.audit.attack import Evidence, PrivacyAttack
from personae.privacy.audit.finding import Finding
from personae.privacy.audit.naming import by_kind, finding, named

MOST_WINDOWS, AT_ONCE = 1 << 20, 1 << 14


@dataclass(frozen=True, kw_only=True)
class HiddenRows(PrivacyAttack):
    """Every stretch of an update that is as long as an embedding is compared with photographs of everybody."""

    name: ClassVar[str] = "hidden-rows"
    has: ClassVar[str] = "the same as `updates`"
    tries: ClassVar[str] = "to find vectors of people written into the weights, whole and next to each other"
    strength: ClassVar[str] = (
        "finds what is hidden plainly; not what is encrypted, spread out or turned by a secret key"
    )
    figure: ClassVar[str] = "rank-1"

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        _, gallery = evidence.gallery
        for target, updates in by_kind(evidence):
            received = [each for each, _ in updates]
            scores = []
            for each, way in updates:
                sent = [part.flat for part in each.message.parts() if isinstance(part, NetworkVector)]
                scores.append(torch.stack([_likeness(vector.cpu(), gallery) for vector in (way, *sent)]).amax(0))
            result = named(evidence, [each.client for each in received], torch.stack(scores))
            yield finding(self.name, self.figure, evidence, target, result)


def _likeness(vector: Tensor, gallery: Tensor) -> Tensor:
    """For each row of the gallery, the highest cosine with a stretch of the vector."""
    width = gallery.shape[1]
    stride = max(1, -(-len(vector) // MOST_WINDOWS))
    best = torch.full((len(gallery),), -1.0)
    windows = vector.unfold(0, width, stride)
    for start in range(0, len(windows), AT_ONCE):
        part = windows[start : start + AT_ONCE]
        lengths = part.norm(dim=1, keepdim=True).clamp_min(1e-12)
        best = torch.maximum(best, (part @ gallery.T / lengths).amax(0))
    return best
