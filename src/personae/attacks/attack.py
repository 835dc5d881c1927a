"""An attack: what clients that mean harm do to their faces, and to what leaves them.

For tests and research. Attackers exist in `personae attack` alone: nothing that trains or joins imports this package.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from personae.attacks.trigger import Trigger
from personae.core.algorithm import AnyAlgorithm, ClientInfo
from personae.core.holdings import ClientFaces
from personae.core.layer import recast
from personae.core.message import Broadcast, Message
from personae.core.payload import Count, Gradient, ModelState, NetworkVector
from personae.core.quantities import GRADIENT, SAMPLES, STATISTICS, UPDATE
from personae.core.rng import generator
from personae.core.samples import Samples
from personae.errors import ConfigError
from personae.runtime.consensus import Consensus
from personae.runtime.firewall import Firewall, measured

WITHIN = 0.97  # of a bound that is known but for rounding
BEYOND = 10.0  # times what any honest client has


@dataclass(frozen=True)
class Sent:
    """What a client received in a round, and what it would answer if it were honest."""

    client: ClientInfo
    down: Broadcast
    up: Message

    def begin(self, vector: NetworkVector) -> Tensor:
        """Where the vector began: in the received model, or at zero for a direction."""
        zero = isinstance(vector, Gradient)
        return torch.zeros_like(vector.flat) if zero else self.down.model.entries(vector.layout).to(vector.flat.device)

    def vectors(self) -> dict[str, NetworkVector]:
        """By field, what of the answer is about the network."""
        fields = {name: getattr(self.up, name) for name in self.up.hints()}
        return {name: value for name, value in fields.items() if isinstance(value, NetworkVector)}

    def step(self, name: str) -> Tensor:
        """How far the weights in a field are from where they began. Statistics of BatchNorm are no weights."""
        vector = self.vectors()[name]
        return (vector.flat - self.begin(vector))[: vector.layout.trainable_size]

    def moved(self, steps: Callable[[str], Tensor]) -> Message:
        """The answer with other steps of the weights, by field; statistics stay, since odd ones would be noticed."""
        changed: dict[str, Any] = {}
        for name, vector in self.vectors().items():
            weights, flat = slice(vector.layout.trainable_size), vector.flat.clone()
            flat[weights] = self.begin(vector)[weights] + steps(name)
            changed[name] = type(vector)(vector.layout, flat)
        return recast(type(self.up), self.up, **changed)

    def counts(self) -> dict[str, int]:
        """By field, on how many samples the answer rests."""
        fields = {name: getattr(self.up, name) for name in self.up.hints()}
        return {name: value.value for name, value in fields.items() if isinstance(value, Count)}


@dataclass(frozen=True)
class Scene:
    """A round as the attackers see it, who know everything: the worst case."""

    seed: int
    stage: str
    round: int
    attackers: Sequence[Sent]
    others: Sequence[Sent]  # of honest clients
    past: Sequence[Message] = ()  # what this attacker would have answered in earlier rounds of the stage
    firewall: Firewall = field(default_factory=Firewall)  # of the server

    def generator(self, client: str) -> torch.Generator:
        return generator(self.seed, self.stage, self.round, client, "attack")

    def honest(self, name: str) -> Tensor:
        """The steps of all honest clients in a field; those of the attackers where nobody else was asked."""
        return torch.stack([sent.step(name) for sent in self.others or self.attackers])

    def bounds(self, sent: Sent) -> Mapping[str, float]:
        """By quantity, what the server lets pass of an attacker without drawing it back.

        They follow from all that is sent in the round, and are widest if every attacker is beyond all honest clients.
        Where nothing is drawn back, attackers go as far as if every claim were credible.
        """
        firewall = self.firewall if self.firewall.enabled else Firewall(credible=math.inf)
        model, honest = sent.down.model, self.others or self.attackers
        measures = {each.client.name: measured(each.up, model) for each in honest}
        for client, distance in self.consensus(model).distances().items():
            measures[client][STATISTICS] = distance
        farthest: dict[str, float] = {}
        for each in measures.values():
            farthest |= {quantity: max(value, farthest.get(quantity, 0.0)) for quantity, value in each.items()}
        beyond = {quantity: BEYOND * value for quantity, value in farthest.items()}
        measures |= {attacker.client.name: beyond for attacker in self.attackers}
        return firewall.bounds(measures, model)[sent.client.name]

    def consensus(self, model: ModelState) -> Consensus:
        """What the statistics of honest updates come to."""
        found = Consensus(model)
        for each in self.others or self.attackers:
            found.hear(each.client.name, each.up)
        return found

    def longest(self, sent: Sent, name: str) -> float:
        """How long an attacker's step may be without being drawn back, of who claims as much as it may."""
        kind = GRADIENT if isinstance(sent.vectors()[name], Gradient) else UPDATE
        return WITHIN * self.bounds(sent)[kind]

    def claims(self, sent: Sent) -> dict[str, int]:
        """By field, as many samples as the server believes, or what the attacker has if that is more."""
        bounds = self.bounds(sent)
        return {name: max(int(bounds[SAMPLES]), own) for name, own in sent.counts().items()}


@dataclass(frozen=True)
class Target:
    """What attackers know before the first round."""

    seed: int
    client: str  # the attacker
    victim: Samples | None = None  # faces of an honest client; its first person is the victim


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Clients that follow it train like all others, on faces that it may change, and answer what it makes of that."""

    name: ClassVar[str]
    trigger: ClassVar[Trigger | None] = None  # what strangers wear who want to be taken for each other

    scale: float = field(default=1.0, kw_only=True)  # how many times as far the answer goes as it would

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ConfigError(f"--scale {self.scale}: give a finite number")

    def check(self, algorithm: AnyAlgorithm) -> None:
        """Raises ValueError with the reason, if it cannot be tried on this algorithm."""
        if not any(issubclass(kind, NetworkVector) for kind in algorithm.types.up.kinds().values()):
            raise ValueError(f"clients of {algorithm.name} send nothing of a network")

    def require_counts(self, algorithm: AnyAlgorithm) -> None:
        """Raises ValueError where clients do not say how many samples they have."""
        if Count not in algorithm.types.up.kinds().values():
            raise ValueError(f"clients of {algorithm.name} send no number of samples")

    def faces(self, faces: ClientFaces, target: Target) -> ClientFaces:  # noqa: ARG002 - of attacks on faces
        """What an attacker trains on."""
        return faces

    def answer(self, sent: Sent, scene: Scene) -> Message:  # noqa: ARG002 - of attacks on messages
        """What an attacker sends in the place of its honest answer."""
        return sent.moved(lambda name: self.scale * sent.step(name))


def claiming(up: Message, counts: Mapping[str, int]) -> Message:
    """The answer with other numbers of samples, by field."""
    changed: dict[str, Any] = {name: Count(value) for name, value in counts.items()}
    return recast(type(up), up, **changed)
