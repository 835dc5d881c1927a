"""A fixed number of clients, drawn again in every round."""

from dataclasses import dataclass
from typing import ClassVar

from personae.core.algorithm import ClientInfo
from personae.core.bounds import PositiveInt
from personae.core.mechanism import Together
from personae.core.selection import Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class FixedCount(Selection):
    """Every client is as probable as the others."""

    name: ClassVar[str] = "count"

    clients: PositiveInt
    """How many are asked; all, where there are fewer."""

    @property
    def most(self) -> int:
        return self.clients

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        return min(self.clients, eligible)

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        return occasion.drawn(self.clients)

    def draw(self, eligible: int, round_: int, rounds: int) -> Together:
        return Together(self.count(eligible, round_, rounds), eligible)
