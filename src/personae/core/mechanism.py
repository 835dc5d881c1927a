"""What an accountant of privacy has to know: which noise hides a client, and how clients come into a cohort."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["client", "person", "class embedding"]
Observer = Literal["readers", "server"]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Gaussian noise on what a client contributes to a round, which is bounded."""

    multiplier: float  # the standard deviation of the noise, over the most that one unit can change what is noised
    unit: Unit  # what one more or less of makes little difference
    against: Observer  # readers get the models that the server makes; the server gets what a client sends, too
    covers: tuple[str, ...]  # the fields of a client's message that are noised
    secret: bool  # False: whoever knows the seed of the experiment can take the noise away again
    share: float = 1.0  # the probability with which a client draws each of its units for a round, and tells nobody
    pooling: int | None = None
    """Where every client adds noise of its own and a sum has that of all: how many clients may tell theirs."""


@dataclass(frozen=True)
class Certain:
    """Every client takes part exactly once in the rounds of a turn."""

    turn: int


@dataclass(frozen=True)
class Independent:
    """Every client is drawn for itself, whoever else is: Poisson sampling."""

    rate: float


@dataclass(frozen=True)
class Together:
    """A cohort of a fixed size is drawn without replacement, any as probable as the others."""

    cohort: int
    of: int


Draw = Certain | Independent | Together
