"""A federation some of whose clients are attackers: around its holdings, and around the way to its clients."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from personae.attacks.attack import Attack, Scene, Sent, Target
from personae.core.holdings import ClientFaces, Holdings
from personae.core.message import Broadcast, Message, Trouble
from personae.core.rng import generator
from personae.core.stage import Recipe
from personae.errors import ConfigError
from personae.runtime.federation import Federation
from personae.runtime.firewall import Firewall
from personae.runtime.transport import TRAIN, Answer, Failure, Request, Transport


@dataclass(frozen=True)
class Infiltration:
    """Which share of the clients follows which attack, whoever these are by the seed."""

    attack: Attack
    share: float
    seed: int
    firewall: Firewall = field(default_factory=Firewall)  # of the server, which attackers know

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"--share {self.share:g}: a share of the clients is between 0 and 1")

    def attackers(self, holdings: Holdings) -> tuple[str, ...]:
        """One at least, and not everybody."""
        trained = [name for name in holdings.clients if name not in holdings.newcomers]
        if len(trained) < 2:
            raise ConfigError("an attack takes two clients that train: one that attacks and one that does not")
        count = min(max(1, round(self.share * len(trained))), len(trained) - 1)
        order = torch.randperm(len(trained), generator=generator(self.seed, "attackers")).tolist()
        return tuple(trained[index] for index in sorted(order[:count]))

    def federation(self, federation: Federation) -> Federation:
        """What the clients are told: the attackers have other faces."""
        names = self.attackers(federation.holdings)
        infiltrated = InfiltratedHoldings(federation.holdings, self.attack, names, self.seed)
        return replace(federation, holdings=infiltrated)

    def transport(self, transport: Transport, federation: Federation) -> Transport:
        """The way to the clients, on which the attackers change what they send."""
        return InfiltratedTransport(
            transport, self, self.attackers(federation.holdings), self.stages(federation.recipe)
        )

    def stages(self, recipe: Recipe) -> frozenset[str]:
        """Those in which it can be tried."""
        possible, reasons = set(), ["no stage of this experiment is federated"]
        for stage in (stage for stage in recipe if stage.algorithm.federated):
            try:
                self.attack.check(stage.algorithm)
                possible.add(stage.name)
            except ValueError as error:
                reasons.append(f"stage {stage.name}: {error}")
        if not possible:
            raise ConfigError(f"attack {self.attack.name}: {reasons[-1]}")
        return frozenset(possible)


@dataclass(frozen=True)
class InfiltratedHoldings:
    """Holdings in which attackers train on what their attack makes of their faces. Evaluations see what they hold."""

    inside: Holdings
    attack: Attack
    attackers: tuple[str, ...]
    seed: int

    @property
    def clients(self) -> tuple[str, ...]:
        return self.inside.clients

    @property
    def newcomers(self) -> frozenset[str]:
        return self.inside.newcomers

    def of(self, client: str) -> ClientFaces:
        faces = self.inside.of(client)
        if client not in self.attackers:
            return faces
        return self.attack.faces(faces, Target(self.seed, client, self.victim().train))

    def victim(self) -> ClientFaces:
        """The first client that is honest; its first person is the victim."""
        honest = next(name for name in self.clients if name not in {*self.attackers, *self.newcomers})
        return self.inside.of(honest)


@dataclass
class InfiltratedTransport:
    """Answers of a round are held until all are in; then attackers, who know them all, change their own."""

    inside: Transport
    plot: Infiltration
    attackers: tuple[str, ...]
    stages: frozenset[str]
    past: dict[tuple[str, str], list[Message]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.problems = self.inside.problems

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        asked: dict[str, Request] = {}

        def noted() -> Iterator[Request]:
            for request in requests:
                asked[request.client.name] = request
                yield request

        held: list[Sent] = []
        for answer in self.inside.exchange(noted()):
            request = asked[answer.client.name]
            idle = request.task != TRAIN or request.stage not in self.stages
            if idle or isinstance(answer, Failure) or isinstance(answer.message, Trouble):
                yield answer
            else:
                assert isinstance(request.down, Broadcast)
                held.append(Sent(answer.client, request.down, answer.message))
        if held:
            yield from self._changed(sorted(held, key=lambda sent: sent.client.index), next(iter(asked.values())))

    def _changed(self, held: list[Sent], request: Request) -> Iterator[Answer]:
        own = [sent for sent in held if sent.client.name in self.attackers]
        others = [sent for sent in held if sent.client.name not in self.attackers]
        for sent in others:
            yield Answer(sent.client, sent.up)
        for sent in own:
            past = self.past[request.stage, sent.client.name]
            scene = Scene(self.plot.seed, request.stage, request.round, own, others, tuple(past), self.plot.firewall)
            past.append(sent.up)
            yield Answer(sent.client, self.plot.attack.answer(sent, scene))

    def settle(self) -> None:
        self.inside.settle()

    def close(self) -> None:
        self.inside.close()
