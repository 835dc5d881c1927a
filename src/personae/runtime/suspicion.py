"""Who is suspected of what: a round's updates beside each other, and a score of each client.

Honest updates point in about as many directions as there are clients: their people differ. Four signs are rare among
them, and common among attackers. *Alike*: two updates are far more alike than pairs of that round are. *Against*: an
update goes against the sum of the others. Both are measured in robust deviations of the round itself. There must be
something to go against: where fewer than two thirds of a round go along with the others, as among clients that are near
their optimum, this proves nothing about a client that has no score yet. *Long*: an update is many times as long as it
may be without being drawn back. *Harm*: the model with this update alone tells faces that the server has rendered apart
far less well than with others of the round.

One round proves little. A client's score adds up what its signs exceed a usual round by, and falls slowly in rounds
without signs. Above a bound its updates are left out, and the score goes on: it can come back by itself.
"""

import hashlib
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.message import Message
from personae.core.payload import Gradient, ModelState, NetworkVector
from personae.core.rng import generator
from personae.runtime.proof import MEANINGFUL

WIDTH = 1 << 14  # numbers that stand for an update: cosines of these are off by a hundredth
FEWEST = 5  # clients of a round; among fewer nobody can say what is usual
FEWEST_TRIED = 8  # clients of a round; among fewer, chance makes an honest update look harmful too often
USUAL = 4.0  # deviations that the most alike of all pairs come to now and then
OPPOSED = 2.0  # deviations that an honest client goes against the others now and then
HARMFUL = 3.0  # deviations by which an honest update alone is worse than others now and then
FALL = 1.0  # by so much a score falls in a round without signs, so that nobody is trusted again at once
LEAST = 0.02  # of a deviation: cosines of unrelated updates differ by as much
SLIGHT = 0.01  # of a deviation of separations, which chance in the rendered faces explains
ROBUST = 1.4826  # a standard deviation, in median deviations from the median


class Fingerprints:
    """Directions of updates as short vectors: each number is a sum of entries with random signs, always the same."""

    def __init__(self, model: ModelState) -> None:
        self._model = model
        self._signs = _signs(model.layout.trainable_size, model.flat.device)

    def of(self, update: Message) -> Tensor | None:
        """Of the weights alone, since statistics of BatchNorm would drown them; None of an update that is nowhere."""
        total = torch.zeros(WIDTH, device=self._signs.device)
        for part in update.parts():
            if isinstance(part, NetworkVector) and not isinstance(part, Gradient):
                weights = part.layout.trainable_size
                step = part.flat.to(total.device) - self._model.entries(part.layout)
                signed = step[:weights] * self._signs[:weights]
                total += F.pad(signed, (0, -weights % WIDTH)).view(-1, WIDTH).sum(0)
        total = total.cpu()
        length = float(total.norm())
        return total / length if 0 < length < float("inf") else None


@lru_cache(maxsize=1)  # of the network of a run
def _signs(weights: int, device: torch.device) -> Tensor:
    source = generator("fingerprints of updates")
    return torch.randint(0, 2, (weights,), dtype=torch.int8, generator=source).mul_(2).sub_(1).to(device)


def by_itself(update: Message, model: ModelState) -> ModelState:
    """The model with this update and no other."""
    for part in update.parts():
        if isinstance(part, NetworkVector) and not isinstance(part, Gradient):
            model = model.with_entries(part.layout, part.flat)
    return model


def draw(prints: Mapping[str, Tensor], count: int) -> list[str]:
    """So many clients of a round; none where there are too few to say how far they usually differ.

    The draw follows from everybody's updates. So nobody knows before it answers whether it will be drawn, and a run
    that was cut off draws the same again.
    """
    if len(prints) < FEWEST_TRIED:
        return []
    digest = hashlib.blake2b(b"".join(print_.numpy().tobytes() for print_ in prints.values())).hexdigest()
    order = torch.randperm(len(prints), generator=generator(digest, "updates to be tried alone")).tolist()
    names = list(prints)
    return [names[place] for place in sorted(order[:count])]


def harms(separations: Mapping[str, float], usual: Collection[str]) -> dict[str, float]:
    """How much less well than the `usual` clients' each update alone tells faces apart, in their robust deviations."""
    values = [separations[name] for name in usual]
    if not values or (middle := statistics.median(values)) < MEANINGFUL:
        return {}
    deviation = max(ROBUST * statistics.median(abs(value - middle) for value in values), SLIGHT)
    return {name: max(0.0, middle - value) / deviation for name, value in separations.items()}


@dataclass(frozen=True)
class Signs:
    """How unusual a client's update is in its round, in robust deviations."""

    alike: float  # its likeness with whom it is most like
    whom: str
    against: float  # how far it goes against the others
    long: float = 0.0  # how many times as long it is as it may be
    harm: float = 0.0  # how much less well than others it tells rendered faces apart
    agreed: bool = True  # whether two thirds of the round go along with the others

    def score(self, before: float, partner: float, bound: float) -> float:
        """The score after these signs, from what it and that of `whom` were before.

        Likeness takes two: it adds to what both had before. Who is like one client today and like another tomorrow is
        no accomplice. A long update is drawn back, and that is enough for once: it takes two rounds. So does harm,
        since a client with unusual faces may do some.
        """
        against = self.against if self.agreed or before > 0 else 0.0
        once = min(max(self.long - USUAL, self.harm - HARMFUL), bound)
        alone = before + max(against - OPPOSED, once, -FALL)
        return max(0.0, alone, min(before, partner) + self.alike - USUAL)

    def __str__(self) -> str:
        """The strongest sign, in words."""
        beyond = {
            "its updates are many times as long as those of the others": self.long - USUAL,
            f"its update is far more like that of {self.whom} than updates of a round are": self.alike - USUAL,
            "its update goes against those of the others": self.against - OPPOSED,
            "its updates by themselves tell rendered faces apart far less well than others": self.harm - HARMFUL,
        }
        return max(beyond, key=beyond.__getitem__)


def signs_of(
    prints: Mapping[str, Tensor],
    lengths: Mapping[str, float] | None = None,
    harms: Mapping[str, float] | None = None,
) -> dict[str, Signs]:
    """The signs of every client, from the fingerprints of a round, from `lengths` beyond what may be, and `harms`."""
    if len(prints) < FEWEST:
        return {}
    names, stack = list(prints), torch.stack(list(prints.values())).double()
    cosines = stack @ stack.T
    others = ~torch.eye(len(names), dtype=torch.bool)
    likeness = (cosines - cosines[others].median()) / _deviation(cosines[others])
    likeness = likeness.masked_fill(~others, -torch.inf)
    best = likeness.max(dim=1)
    rest = F.normalize(stack.sum(0) - stack, dim=1)
    along = (stack * rest).sum(1)
    against = along.neg().clamp_min(0) / _deviation(along)
    agreed = 3 * int((along > 0).sum()) >= 2 * len(names)
    return {
        name: Signs(
            alike=float(best.values[k]),
            whom=names[int(best.indices[k])],
            against=float(against[k]),
            long=(lengths or {}).get(name, 0.0),
            harm=(harms or {}).get(name, 0.0),
            agreed=agreed,
        )
        for k, name in enumerate(names)
    }


def _deviation(usual: Tensor) -> float:
    """Of the usual values, estimated from their middle."""
    return max(ROBUST * float((usual - usual.median()).abs().median()), LEAST)


@dataclass(frozen=True)
class Ruling:
    """Scores after a round, whom to leave out of it, with the reason, and whose updates go against the others."""

    scores: Mapping[str, float]
    suspects: Mapping[str, str]
    against: frozenset[str] = frozenset()


def ruling(before: Mapping[str, float], signs: Mapping[str, Signs], bound: float) -> Ruling:
    """Scores go up by what signs exceed usual ones by, or down. Above the `bound` is a suspect.

    Where more than a third of a round would be suspects, the round is made of groups and not of a few attackers:
    then none is left out.
    """
    scores = dict(before)
    for name, each in signs.items():
        score = each.score(before.get(name, 0.0), before.get(each.whom, 0.0), bound)
        scores[name] = min(score, 4 * bound)
    suspects = {name: str(each) for name, each in signs.items() if scores[name] > bound}
    few = 3 * len(suspects) <= len(signs)
    against = frozenset(name for name, each in signs.items() if each.against > 0)
    return Ruling({name: score for name, score in scores.items() if score > 0}, suspects if few else {}, against)
