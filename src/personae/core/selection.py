"""Who is asked in a round."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from personae.core.algorithm import ClientInfo
from personae.core.bounds import Bounded
from personae.core.mechanism import Certain, Draw
from personae.core.rng import generator

Knowledge = Literal["samples", "loss"]


@dataclass(frozen=True)
class Occasion:
    """One round in which clients are to be chosen, and what the server knows then.

    `known` has, by client, what its last accepted update said: `samples`, the images it trained on, and `loss`, the
    mean of its training loss. A client that was not heard of yet is not in it.
    """

    clients: Sequence[ClientInfo]  # who may be asked, in order
    seed: int
    stage: str
    round: int  # counted from 1
    rounds: int
    known: Mapping[str, Mapping[Knowledge, float]] = field(default_factory=dict)

    def generator(self, *words: int | str) -> torch.Generator:
        """Random numbers of this round, or with words of their own of whatever these name."""
        return generator(self.seed, self.stage, *(words or (self.round, "participants")))

    def drawn(self, count: int) -> list[ClientInfo]:
        """So many clients, each as probable as the others."""
        order = torch.randperm(len(self.clients), generator=self.generator())
        return self.at(order[:count].tolist())

    def at(self, positions: Sequence[int]) -> list[ClientInfo]:
        """The clients at these positions, in the order of the clients."""
        return [self.clients[position] for position in sorted(positions)]


class Selection(Bounded, ABC):
    """A policy: a frozen dataclass of its settings. The same occasion always gives the same clients."""

    name: ClassVar[str]
    learns: ClassVar[frozenset[Knowledge]] = frozenset()  # what it uses of `Occasion.known`
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @property
    def most(self) -> int | None:
        """The number of clients that its settings name, if they do; there may be fewer."""
        return None

    @abstractmethod
    def count(self, eligible: int, round_: int, rounds: int) -> int:
        """How many of the eligible clients are asked in this round; it does not depend on who they are.

        Of a policy that leaves the number to chance, its mean.
        """

    def smallest(self, eligible: int, rounds: int) -> int:
        """The fewest clients that any of these rounds may ask, if it asks anybody."""
        return min(self.count(eligible, round_, rounds) for round_ in range(1, rounds + 1))

    @abstractmethod
    def select(self, occasion: Occasion) -> list[ClientInfo]:
        """These clients, in the order of the clients."""

    def draw(self, eligible: int, round_: int, rounds: int) -> Draw | None:  # noqa: ARG002 - None, whatever they are
        """How the cohort of a round comes about, for an accountant of privacy.

        None if it may depend on what clients hold, or if the policy does not say.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Everybody(Selection):
    """All clients in every round."""

    name: ClassVar[str] = "all"

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        return eligible

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        return list(occasion.clients)

    def draw(self, eligible: int, round_: int, rounds: int) -> Draw:  # noqa: ARG002
        return Certain(round_)
