"""Clients on which the model does worst are asked first (power-of-choice, Cho et al. 2020)."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch

from personae.core.algorithm import ClientInfo
from personae.core.bounds import PositiveInt
from personae.core.selection import Knowledge, Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class HighestLoss(Selection):
    """Of some candidates, drawn at random, those with the highest loss when they were last heard.

    A client that was not heard of yet comes before all others.
    """

    name: ClassVar[str] = "highest-loss"
    learns: ClassVar[frozenset[Knowledge]] = frozenset({"loss"})

    clients: PositiveInt
    """m: how many are asked in a round; all, where there are fewer."""
    candidates: int
    """d: how many are drawn to choose from. With as many as `clients`, the choice is random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients > self.candidates:
            raise ValueError(f"clients is {self.clients}, it must not exceed candidates ({self.candidates})")

    @property
    def most(self) -> int:
        return self.clients

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        return min(self.clients, eligible)

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        order = torch.randperm(len(occasion.clients), generator=occasion.generator())[: self.candidates].tolist()

        def loss(position: int) -> float:
            known = occasion.known.get(occasion.clients[position].name)
            return inf if known is None else known["loss"]

        return occasion.at(sorted(order, key=loss, reverse=True)[: self.clients])
