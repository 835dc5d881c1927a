"""What a system that uses the model would accept: the score that two templates of one person have to reach."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.embedder import Embedder
from personae.privacy.audit.attack import Evidence, Person, Unmeasurable, means, trained

FAR = 0.01  # of comparisons between templates of two people, the share that is accepted


@dataclass(frozen=True)
class Enrolled:
    """People with two templates each, from different photographs: one that is kept, and one to compare with."""

    people: list[Person]
    kept: Tensor  # [people, width], of the photographs that were trained on, where there are any
    fresh: Tensor  # of other photographs
    threshold: float

    def accepted(self, vectors: Tensor, against: Tensor) -> Tensor:
        """Whether each vector passes for the person of its place."""
        return (F.normalize(vectors, dim=1) * against).sum(1) >= self.threshold

    def accepted_as_others(self, vectors: Tensor, against: Tensor) -> float:
        """How often a vector passes for somebody else: what it has in common with everybody."""
        passed = (F.normalize(vectors, dim=1) @ against.T >= self.threshold).float()
        others = len(passed) * (len(passed) - 1)
        return float((passed.sum() - passed.diagonal().sum()) / others)


def enrolled(evidence: Evidence) -> Enrolled:
    """The people of the clients; the threshold is from shadow people."""
    people = [each for each in evidence.people if len(each.photos) and len(trained(each))]
    if len(people) < 2:
        raise Unmeasurable("there are no photographs of people that were kept out of training")
    embedder = evidence.embedder()
    kept, fresh = (means(embedder, photos) for photos in ([*map(trained, people)], [each.photos for each in people]))
    return Enrolled(people, kept, fresh, _threshold(embedder, evidence))


def _threshold(embedder: Embedder, evidence: Evidence) -> float:
    """At the false accept rate, over all pairs of shadow people, each with two templates."""
    shadows = [each for each in evidence.shadows if len(each.photos) > 1]
    if len(shadows) < 16:
        raise Unmeasurable(f"it takes 16 shadow people, and there are {len(shadows)}; [data.heldout] can hold out more")
    halves = [[each.photos[start::2] for each in shadows] for start in (0, 1)]
    one, other = (means(embedder, half) for half in halves)
    scores = (one @ other.T)[~torch.eye(len(shadows), dtype=torch.bool)]
    return float(scores.kthvalue(math.ceil((1 - FAR) * len(scores))).values)
