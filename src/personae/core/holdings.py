"""Who holds which faces."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from personae.core.samples import Samples


@dataclass(frozen=True)
class ClientFaces:
    """One client's faces; the three sets share one coding of labels.

    A simulation can tell how the client's people fare among everybody's: `strangers` gives the test faces of all other
    clients, in the same coding, with people that this client does not know after its own. Only an evaluator sees them.
    """

    train: Samples
    val: Samples
    test: Samples
    strangers: Callable[[], Samples] | None = None


class Holdings(Protocol):
    """Who holds which faces."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    @property
    def newcomers(self) -> frozenset[str]:
        """Clients that are kept out of training and only evaluated."""

    def of(self, client: str) -> ClientFaces: ...
