"""How long work reports on itself, without knowing who listens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Notify = Callable[[str], None]
"""Takes a line that a person should see."""


class Advance(Protocol):
    """Takes the units of work just done, and where there is more to say, what is going on now in a few words."""

    def __call__(self, count: int, now: str = "", /) -> None: ...


class Progress(Protocol):
    """Opens a meter for `total` units of work."""

    def __call__(self, description: str, total: int, unit: str) -> AbstractContextManager[Advance]: ...


@contextmanager
def silent(description: str, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG001 - the signature of Progress
    """A meter that nobody looks at."""
    yield _ignore


def once(notify: Notify) -> Notify:
    """The same line is told only once."""
    told = set[str]()

    def tell(line: str) -> None:
        if line not in told:
            told.add(line)
            notify(line)

    return tell


def unheard(word: object) -> None:
    """What becomes of a notice or an event that nobody waits for."""


def _ignore(count: int, now: str = "") -> None:
    """What was done is not told."""
