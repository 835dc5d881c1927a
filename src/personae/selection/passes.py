"""Passes over the clients: everybody is asked once before anybody is asked again."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import torch

from personae.core.algorithm import ClientInfo
from personae.core.bounds import PositiveInt
from personae.core.mechanism import Certain
from personae.core.selection import Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class Passes(Selection):
    """Each pass divides the clients, in a random order of its own, into cohorts whose sizes differ by at most one."""

    name: ClassVar[str] = "passes"

    clients: PositiveInt
    """How many are asked in a round at most."""

    @property
    def most(self) -> int:
        return self.clients

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        begin, end = self._bounds(eligible, round_)
        return end - begin

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        number = (occasion.round - 1) // self._cohorts(len(occasion.clients))
        order = torch.randperm(len(occasion.clients), generator=occasion.generator("pass", number))
        begin, end = self._bounds(len(occasion.clients), occasion.round)
        return occasion.at(order[begin:end].tolist())

    def draw(self, eligible: int, round_: int, rounds: int) -> Certain:  # noqa: ARG002
        return Certain((round_ - 1) // self._cohorts(eligible))

    def _cohorts(self, eligible: int) -> int:
        return ceil(eligible / self.clients)

    def _bounds(self, eligible: int, round_: int) -> tuple[int, int]:
        """Where the round's cohort begins and ends in the order of its pass."""
        cohorts = self._cohorts(eligible)
        position = (round_ - 1) % cohorts
        return position * eligible // cohorts, (position + 1) * eligible // cohorts
