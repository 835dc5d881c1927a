"""Where the figures of a run can be followed besides its own folder: one file per tracker."""

from collections.abc import Iterable

from personae.core.registry import Registry
from personae.errors import ConfigError
from personae.tracking.mlflow import MLflow
from personae.tracking.stream import Stream, require_installed, tracking
from personae.tracking.tensorboard import TensorBoard
from personae.tracking.tracker import Tracker
from personae.tracking.trackio import Trackio

TRACKERS: Registry[Tracker] = Registry("personae.trackers", Tracker, (TensorBoard, MLflow, Trackio))


def trackers(names: Iterable[str]) -> tuple[type[Tracker], ...]:
    """Trackers by name, each once; one that is not known or not installed is an error before a run begins."""
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(require_installed(TRACKERS[name]))
        except KeyError as error:
            raise ConfigError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}") from error
    return tuple(found)


__all__ = ["TRACKERS", "MLflow", "Stream", "TensorBoard", "Tracker", "Trackio", "trackers", "tracking"]
