"""Clients with more samples are asked more often."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from personae.core.algorithm import ClientInfo
from personae.core.bounds import PositiveInt
from personae.core.selection import Knowledge, Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class BySamples(Selection):
    """Drawn without replacement, one after the other, each with a probability in proportion to its samples.

    A client that was not heard of yet counts as one with the mean number of samples of those that were.
    """

    name: ClassVar[str] = "by-samples"
    learns: ClassVar[frozenset[Knowledge]] = frozenset({"samples"})

    clients: PositiveInt
    """How many are asked in a round; all, where there are fewer."""

    @property
    def most(self) -> int:
        return self.clients

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        return min(self.clients, eligible)

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        samples = {name: known["samples"] for name, known in occasion.known.items()}
        usual = sum(samples.values()) / len(samples) if samples else 1.0
        weights = torch.tensor([samples.get(client.name, usual) for client in occasion.clients], dtype=torch.float64)
        count = self.count(len(weights), occasion.round, occasion.rounds)
        return occasion.at(torch.multinomial(weights, count, generator=occasion.generator()).tolist())
