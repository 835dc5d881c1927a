"""Algorithms that are not in this package: registered as entry points, or named as `module:Class`."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from personae.algorithms import ALGORITHMS
from personae.core.algorithm import Algorithm, AnyAlgorithm
from personae.errors import ConfigError

GROUP = "personae.algorithms"


class _Available(Mapping[str, type[AnyAlgorithm]]):
    """Every algorithm by name. Nothing of others is imported before it is asked for."""

    def __getitem__(self, name: str) -> type[AnyAlgorithm]:
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        if is_reference(name):
            return _load(EntryPoint(name, name, GROUP))
        return _load(_registered()[name])

    def __iter__(self) -> Iterator[str]:
        return iter({**ALGORITHMS, **_registered()})

    def __len__(self) -> int:
        return len({**ALGORITHMS, **_registered()})


AVAILABLE = _Available()


def is_reference(name: object) -> bool:
    """Whether it is `module:Class`, which runs whatever code is there."""
    return isinstance(name, str) and ":" in name


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> type[AnyAlgorithm]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as with `python -m`, but nothing that is installed is hidden
        importlib.invalidate_caches()
    try:
        kind = point.load()
    except Exception as error:  # it is code of others, which may fail in any way
        raise ConfigError(f"the algorithm {point.value} cannot be imported from here: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Algorithm) and isinstance(getattr(kind, "name", None), str)):
        raise ConfigError(f"the algorithm {point.value} is no subclass of personae.Algorithm with a `name`")
    return kind
