"""Re-identification from updates alone: whose photographs would have moved the weights this way?

For every candidate the server computes the gradient that their photographs give at the model it had sent, and compares
its direction with the client's update.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.payload import ModelState
from personae.parts.images import normalise
from personae.privacy.audit.attack import Evidence, PrivacyAttack, means, trained
from personae.privacy.audit.finding import Finding
from personae.privacy.audit.naming import by_kind, finding, named


@dataclass(frozen=True, kw_only=True)
class Updates(PrivacyAttack):
    """The cosine between a client's update and the gradient of each candidate's photographs."""

    name: ClassVar[str] = "updates"
    has: ClassVar[str] = (
        "the updates of single clients in a round, the model before it, and photographs of all candidates: such "
        "that nobody trained on, or the very ones"
    )
    tries: ClassVar[str] = "to say who is at which client, by the direction of gradients"
    strength: ClassVar[str] = (
        "moderate: it uses first-order directions of one round; stronger attacks train models of their own"
    )
    figure: ClassVar[str] = "rank-1"

    scale: float = 16.0  # of the candidates' classification, by cosine

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        names, _ = evidence.gallery
        people = {person.name: person for person in evidence.people}
        for target, updates in by_kind(evidence):
            received = [each for each, _ in updates]
            ways = F.normalize(torch.stack([way for _, way in updates]), dim=1)
            for words, photos in (
                ("other photographs", [people[name].photos for name in names]),
                ("trained photographs", [trained(people[name]) for name in names]),
            ):
                slopes = self._gradients(evidence, received[0].begin, photos)
                scores = torch.stack([ways @ F.normalize(slope, dim=0) for slope in slopes], dim=1)
                result = named(evidence, [each.client for each in received], scores)
                yield finding(self.name, self.figure, evidence, f"{target}, {words}", result)

    def _gradients(self, evidence: Evidence, model: ModelState, candidates: Sequence[Tensor]) -> Iterator[Tensor]:
        """For each candidate, the way in which training on their photographs would move the weights."""
        centres = means(evidence.embedder(model), candidates)
        module = evidence.backbone.module.eval()
        gradient = evidence.backbone.gradient
        for label, photos in enumerate(candidates):
            batch = normalise(photos).to(evidence.backbone.device)
            logits = self.scale * F.normalize(module(batch), dim=1) @ centres.to(batch.device).T
            loss = F.cross_entropy(logits, torch.full((len(batch),), label, device=batch.device))
            gradient.zero_()
            torch.autograd.backward(loss)
            yield -gradient.cpu()  # a copy where it is on a GPU, and used before the next in any case
