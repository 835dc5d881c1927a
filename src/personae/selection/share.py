"""A share of the clients, drawn again in every round."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from personae.core.algorithm import ClientInfo
from personae.core.bounds import within
from personae.core.mechanism import Together
from personae.core.selection import Occasion, Selection


@dataclass(frozen=True, kw_only=True)
class Share(Selection):
    """Every client is as probable as the others."""

    name: ClassVar[str] = "share"

    share: Annotated[float, within("(0, 1]")]
    """The part of the clients that is asked, in (0, 1]; at least one client is."""

    def count(self, eligible: int, round_: int, rounds: int) -> int:  # noqa: ARG002
        return max(1, round(self.share * eligible))

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        return occasion.drawn(self.count(len(occasion.clients), occasion.round, occasion.rounds))

    def draw(self, eligible: int, round_: int, rounds: int) -> Together:
        return Together(self.count(eligible, round_, rounds), eligible)
