"""What each person of a client contributes, whoever else is there, so that noise can hide one person.

client: for each of its people p, drawn with probability q:
            y_p <- the algorithm's work of a round, from x, on the faces of p beside those of some public people
        send x + 1/n sum_p min(1, C / ||y_p - x||) (y_p - x), with n how many people a client is taken to have

Where a client's people are trained together, each of them is in what the others contribute: as a class embedding that
is pushed away, in the statistics of a batch, in the order of random numbers. Here a contribution is of one person, of
public faces and of the model received. So one person more or less changes the sum by no more than C, and n does not
depend on how many there are. A client keeps nothing from round to round: with a layer `carry` inside, what would stay
with a client is left as the stage began with it.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Carried, Client
from personae.core.bounds import Bounded, PositiveInt, within
from personae.core.layer import Layered, described, innermost
from personae.core.message import Broadcast, LocalState
from personae.core.payload import NetworkVector
from personae.core.rng import generator
from personae.core.samples import Chosen, Joined, Samples
from personae.errors import ConfigError
from personae.layers.bounding import shortened
from personae.parts.secret_noise import chance


@dataclass(frozen=True, kw_only=True)
class Keyed(LocalState):
    """What a client keeps: with it, a round that is done again draws the same people and the same noise again."""

    noise_key: Tensor


@dataclass(frozen=True, kw_only=True)
class People(Bounded):
    """Every person of a client is hidden, and not the client as a whole. It takes public faces and labels."""

    # n: how many people a client is taken to have; its sum is divided by it, however many there are
    expected: PositiveInt
    # q: the probability with which a person is drawn for a round; noise counts for more below 1
    share: Annotated[float, within("(0, 1]")] = 1.0
    beside: PositiveInt = 8  # how many public people each person is told apart from in a round
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def check(self, layer: str, algorithm: AnyAlgorithm) -> None:
        refused = f"layer {layer} cannot hide single people"
        if algorithm.needs_labels_of != "all":
            raise ValueError(f"{refused}: in {described(algorithm)} nobody says who is on a face")
        if innermost(algorithm).personalizes:
            raise ValueError(f"{refused}: {described(algorithm)} keeps something of all people of a client together")

    def model(self, around: Layered, down: Broadcast, client: Client, key: Tensor, bound: float) -> NetworkVector:
        """What the client sends before noise."""
        kind = around.inner.types.up.kinds()["model"]
        assert issubclass(kind, NetworkVector)
        layout = kind.part(client.backbone.layout)
        begin = down.model.entries(layout).to(client.backbone.device)
        total = torch.zeros_like(begin)
        for label in sorted(set(client.train.labels.tolist())):
            name = client.train.identities[label]
            if chance(key, f"drawn/{client.round}/{name}") <= self.share:
                up, _ = around.inner.local(down, None, self._alone(client, label, name))
                total += shortened(up.model.flat - begin, bound)
        return kind(layout, begin + total / self.expected)

    def _alone(self, client: Client, label: int, name: str) -> Client:
        """The client as if it had this person alone, and random numbers that do not depend on anybody else."""
        if client.public_faces is None:
            raise ConfigError(f"{client.info.name} has no public faces to train its people beside")
        random = generator(client.generator.initial_seed(), "person", name)
        own = Chosen(client.train, (client.train.labels == label).nonzero().flatten())
        others = self._others(client.public_faces.samples, max(2, len(own)), random)
        none = Chosen(client.train, torch.zeros(0, dtype=torch.int64))
        return replace(
            client,
            train=Joined(own, others, torch.arange(len(others))),
            val=none,
            test=none,
            generator=random,
            recall=lambda kind: None,  # noqa: ARG005 - whatever an earlier stage kept is of all people
            carried=Carried(),
        )

    def _others(self, public: Samples, most: int, random: torch.Generator) -> Chosen:
        """Faces of some public people, of each at most so many."""
        people = torch.randperm(public.classes, generator=random)[: self.beside]
        order = torch.randperm(len(public), generator=random)
        labels = public.labels[order]
        return Chosen(public, torch.cat([order[labels == person][:most] for person in people]))
