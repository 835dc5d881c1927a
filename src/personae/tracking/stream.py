"""The events of a run on their way to its trackers. None of them can end the run."""

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from personae.core.events import Event
from personae.errors import ConfigError
from personae.progress import Notify
from personae.tracking.tracker import Tracker, figures_of

FOLDER = "tracking"  # in that of the run


class Stream:
    """Hands figures to every tracker. One that fails is told of once and left alone from then on."""

    def __init__(self, kinds: Iterable[type[Tracker]], folder: Path, experiment: str, notify: Notify) -> None:
        self._notify = notify
        self._open: dict[str, Tracker] = {}
        for kind in kinds:
            self._try(kind.name, lambda kind=kind: self._open.update({kind.name: kind(folder / kind.name, experiment)}))  # type: ignore[misc]

    def __call__(self, event: Event) -> None:
        if figures := figures_of(event):
            for name, tracker in list(self._open.items()):
                self._try(name, lambda tracker=tracker: tracker.log(figures, event.round))  # type: ignore[misc]

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.close)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        try:
            with warnings.catch_warnings():  # of libraries to each other
                warnings.simplefilter("ignore")
                work()
        except Exception as error:  # code of others, which may fail in any way
            self._open.pop(name, None)
            why = str(error).partition("\n")[0] or type(error).__name__
            self._notify(f"the tracker {name} failed and gets nothing more: {why}; the run and its records go on")


@contextmanager
def tracking(kinds: Iterable[type[Tracker]], folder: Path, experiment: str, notify: Notify) -> Iterator[Stream]:
    """Trackers of a run in this folder, open for as long as it goes on."""
    stream = Stream(kinds, folder / FOLDER, experiment, notify)
    try:
        yield stream
    finally:
        stream.close()


def require_installed(kind: type[Tracker]) -> type[Tracker]:
    if importlib.util.find_spec(kind.module) is None:
        raise ConfigError(f"tracker {kind.name}: {kind.module} is not installed; pip install 'personae[{kind.extra}]'")
    return kind
