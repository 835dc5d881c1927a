"""How long work reports on itself, without knowing who listens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]
Notify = Callable[[str], None]
"""Takes a line that a person should see."""


class Progress(Protocol):
    """Opens a meter for `total` units of work; the function it gives is called with the units just done."""

    def __call__(self, description: str, total: int, unit: str) -> AbstractContextManager[Advance]: ...


@contextmanager
def silent(description: str, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG001 - the signature of Progress
    """A meter that nobody looks at."""
    yield _ignore


def unheard(word: object) -> None:
    """What becomes of a notice or an event that nobody waits for."""


def _ignore(count: int) -> None:
    """What was done is not told."""
