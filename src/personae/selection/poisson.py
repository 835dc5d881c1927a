"""Every client is drawn for itself, so that the number of those who are asked is left to chance."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from personae.core.algorithm import ClientInfo
from personae.core.bounds import within
from personae.core.mechanism import Independent
from personae.core.selection import Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class Poisson(Selection):
    """Each client is asked with the same probability, independently of the others. In some rounds that may be nobody.

    Accountants of differential privacy know this policy best: noise hides more where nobody knows who took part.
    """

    name: ClassVar[str] = "poisson"

    rate: Annotated[float, within("(0, 1]")]
    """The probability with which a client is asked in a round, in (0, 1]."""

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        return max(1, round(self.rate * eligible))

    def smallest(self, eligible: int, rounds: int) -> int:  # noqa: ARG002
        return eligible if self.rate == 1 else 1  # in rounds of nobody, nobody sees anything

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        chances = torch.rand(len(occasion.clients), dtype=torch.float64, generator=occasion.generator())
        return occasion.at((chances < self.rate).nonzero().flatten().tolist())

    def draw(self, eligible: int, round_: int, rounds: int) -> Independent:  # noqa: ARG002
        return Independent(self.rate)
