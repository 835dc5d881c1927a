"""Membership of people: was this person trained on, by any client, or by this one?

Training pulls the photographs of one person together. How close they are depends on the person, too. What is scored is
therefore how much closer they are than the model before the stage lets one expect, as people show whom nobody trained
on (shadow people).

In the update of one client it may be the other way round: steps that tell few people apart move their photographs more
than those of strangers, in whatever direction. The attacker has a client of its own in the same round, knows whom that
was trained on, and reads the direction from its update.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.core.embedder import Embedder
from personae.core.payload import Gradient, ModelState, NetworkVector
from personae.privacy.audit.attack import Evidence, PrivacyAttack, Unmeasurable, trained
from personae.privacy.audit.finding import AUC, Finding, share_interval

LOW_FPR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Membership(PrivacyAttack):
    """How close a person's photographs are to each other, beyond what the model before lets expect."""

    name: ClassVar[str] = "membership"
    has: ClassVar[str] = (
        "the model after the stage and the one before, photographs of the person (those trained on, or others), and "
        "shadow people; for the question after one client, that client's update and a client of the attacker's own"
    )
    tries: ClassVar[str] = "to say whether the person was trained on"
    strength: ClassVar[str] = (
        "moderate: one statistic, calibrated on shadow people; attacks that train shadow models get further"
    )
    figure: ClassVar[str] = AUC

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        shadows = [person.photos for person in evidence.shadows if len(person.photos) > 1]
        if len(shadows) < 8:
            raise Unmeasurable(
                f"it takes 8 shadow people, and there are {len(shadows)}; [data.heldout] can hold out more"
            )
        for words, photos in (
            ("trained photographs", [trained(person) for person in evidence.people]),
            ("other photographs", [person.photos for person in evidence.people]),
        ):
            members = [each for each in photos if len(each) > 1]
            if len(members) > 1:
                yield from self._anywhere(evidence, f"model, {words}", members, shadows)
        yield from self._at_clients(evidence, shadows)

    def _anywhere(
        self, evidence: Evidence, target: str, members: Sequence[Tensor], shadows: Sequence[Tensor]
    ) -> Iterator[Finding]:
        least = min(len(each) for each in (*members, *shadows))  # as many of each: the spread depends on it
        everybody = [each[:least] for each in (*members, *shadows)]
        after = closeness(evidence.embedder(), everybody)
        before = closeness(evidence.embedder(evidence.begin), everybody)
        fitted, tested = slice(len(members), None, 2), slice(len(members) + 1, None, 2)
        scores = _beyond(before, after, fitted)
        if not scores.isfinite().all():
            raise Unmeasurable("the model gives vectors that are not finite")
        yield from _figures(self.name, evidence, target, scores[: len(members)], scores[tested])

    def _at_clients(self, evidence: Evidence, shadows: Sequence[Tensor]) -> Iterator[Finding]:
        """Of the people of all clients, which are at this one? The others were trained on elsewhere."""
        people = [person for person in evidence.people if len(trained(person)) > 1]
        if not people:
            return
        least = min(len(each) for each in (*map(trained, people), *shadows))
        photos = [each[:least] for each in (*map(trained, people), *shadows)]
        for number in sorted({each.round for each in evidence.received}):
            holding, gained = [], []  # for each update: who is at its client, and how much closer everybody is
            for each in (each for each in evidence.received if each.round == number):
                model = _model(each.begin, each.message.parts())
                held = torch.tensor([person.client == each.client for person in people])
                if model is None or not held.any() or held.all():
                    continue
                after = closeness(evidence.embedder(model), photos)
                if not after.isfinite().all():
                    after = closeness(evidence.embedder(_with_statistics_of(each.begin, model)), photos)
                if not after.isfinite().all():
                    continue
                before = closeness(evidence.embedder(each.begin), photos)
                holding.append(held)
                gained.append(_beyond(before, after, slice(len(people), None))[: len(people)])
            if not gained:
                continue
            helds, gains = torch.stack(holding), torch.stack(gained)
            if len(gains) > 1:
                gains = gains - gains.mean(0)  # of what all updates do alike, a server sees that it is no sign
                ways = torch.tensor([_way(held, gain) for held, gain in zip(helds, gains, strict=True)])
                gains = gains * ways.roll(-1)[:, None]  # the attacker's own client is the next one
            inside, outside = gains[helds], gains[~helds]
            target = f"updates of round {number}, at this client"
            yield from _figures(self.name, evidence, target, inside, outside)


def _way(held: Tensor, gain: Tensor) -> float:
    """1 if the people of a client come closer than others, -1 if it is the other way round."""
    return 1.0 if gain[held].median() >= gain[~held].median() else -1.0


def closeness(embedder: Embedder, people: Sequence[Tensor]) -> Tensor:
    """The mean cosine between the photographs of each person, of which there are as many of everybody."""
    vectors = embedder(torch.cat(list(people))).reshape(len(people), len(people[0]), -1)
    products = vectors @ vectors.transpose(1, 2)
    count = len(people[0])
    return (products.sum((1, 2)) - products.diagonal(dim1=1, dim2=2).sum(1)) / (count * (count - 1))


def auc(inside: Tensor, outside: Tensor) -> float:
    """How often a score of the first is above one of the second; ties count half."""
    above = (inside[:, None] > outside).float() + 0.5 * (inside[:, None] == outside).float()
    return float(above.mean())


def _beyond(before: Tensor, after: Tensor, fitted: slice | Tensor) -> Tensor:
    """What is left of the values after once a line through those before, fitted on some, is taken away."""
    x, y = before[fitted].double(), after[fitted].double()
    spread = x - x.mean()
    slope = float((spread * (y - y.mean())).sum() / (spread * spread).sum().clamp_min(1e-12))
    rest = after.double() - y.mean() - slope * (before.double() - x.mean())
    return rest / float(rest[fitted].std().clamp_min(1e-12))


def _figures(name: str, evidence: Evidence, target: str, inside: Tensor, outside: Tensor) -> Iterator[Finding]:
    area, few = auc(inside, outside), min(len(inside), len(outside))
    # Hanley and McNeil's standard error of an area.
    one, two = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (len(inside) - 1) * (one - area**2) + (len(outside) - 1) * (two - area**2)
    reach = 1.959964 * math.sqrt(max(0.0, spread) / (len(inside) * len(outside)))
    shared = {"attack": name, "stage": evidence.stage, "target": target}
    yield Finding(
        **shared,
        figure=AUC,
        value=area,
        chance=0.5,
        low=max(0.0, area - reach),
        high=min(1.0, area + reach),
        trials=few,
        details={"members": len(inside), "others": len(outside)},
    )
    rate = max(LOW_FPR, 1 / (len(outside) + 1))  # fewer people cannot show a lower one
    allowed = math.floor(rate * len(outside))
    bar = outside.sort(descending=True).values[allowed]
    hits = int((inside > bar).sum())
    low, high = share_interval(hits, len(inside))
    yield Finding(
        **shared,
        figure=f"TPR at FPR {100 * rate:.2g}%",
        value=hits / len(inside),
        chance=rate,
        low=low,
        high=high,
        trials=len(inside),
        details={"members": len(inside), "others": len(outside)},
    )


def _model(begin: ModelState, parts: Sequence[object]) -> ModelState | None:
    """The client's model as far as it was sent; a payload of directions is none."""
    for part in parts:
        if isinstance(part, NetworkVector) and not isinstance(part, Gradient):
            return begin.with_entries(part.layout, part.flat)
    return None


def _with_statistics_of(begin: ModelState, model: ModelState) -> ModelState:
    """The weights of a model that cannot embed: noise makes variances negative, which an attacker can undo."""
    size = model.layout.trainable_size
    return ModelState(model.layout, torch.cat([model.flat[:size], begin.flat[size:]]))
