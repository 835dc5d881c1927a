"""A cohort that grows over the stage: many steps in sequence first, averages of many clients at the end."""

from dataclasses import dataclass
from typing import ClassVar

from personae.core.algorithm import ClientInfo
from personae.core.bounds import PositiveInt
from personae.core.mechanism import Together
from personae.core.selection import Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class Growing(Selection):
    """The number of clients goes from `first` to `last` in equal steps; who they are is drawn in every round."""

    name: ClassVar[str] = "growing"

    first: PositiveInt
    """How many are asked in the first round."""
    last: int
    """How many are asked in the last round; all, where there are fewer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first > self.last:
            raise ValueError(f"first is {self.first}, it must not exceed last ({self.last})")

    @property
    def most(self) -> int:
        return self.last

    def count(self, eligible: int, round_: int, rounds: int) -> int:
        done = (round_ - 1) / (rounds - 1) if rounds > 1 else 1.0
        return min(round(self.first + done * (self.last - self.first)), eligible)

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        return occasion.drawn(self.count(len(occasion.clients), occasion.round, occasion.rounds))

    def draw(self, eligible: int, round_: int, rounds: int) -> Together:
        return Together(self.count(eligible, round_, rounds), eligible)
