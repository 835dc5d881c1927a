"""Kinds of things by name: those of this package, those of others registered as entry points, or `module:Class`."""

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from personae.errors import ConfigError

KindT = TypeVar("KindT")


class Registry(Mapping[str, type[KindT]], Generic[KindT]):
    """Every kind by name. Nothing of others is imported before it is asked for.

    `group` is the entry-point group in which other packages register theirs; each of them is a subclass of `base`.
    """

    def __init__(self, group: str, base: type[Any], own: Iterable[type[KindT]]) -> None:
        self.group = group
        self.base = base
        self.own: dict[str, type[KindT]] = {kind.name: kind for kind in own}  # type: ignore[attr-defined]

    def __getitem__(self, name: str) -> type[KindT]:
        if name in self.own:
            return self.own[name]
        if is_reference(name):
            return self._load(EntryPoint(name, name, self.group))
        return self._load(self._registered()[name])

    def __iter__(self) -> Iterator[str]:
        return iter({**self.own, **self._registered()})

    def __len__(self) -> int:
        return len({**self.own, **self._registered()})

    def _registered(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, point: EntryPoint) -> type[KindT]:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # as with `python -m`, but nothing that is installed is hidden
            importlib.invalidate_caches()
        what = f"the {self.base.__name__.lower()} {point.value}"
        try:
            kind: Any = point.load()
        except Exception as error:  # it is code of others, which may fail in any way
            raise ConfigError(f"{what} cannot be imported from here: {error}") from error
        if not (
            isinstance(kind, type) and issubclass(kind, self.base) and isinstance(getattr(kind, "name", None), str)
        ):
            raise ConfigError(f"{what} is not a subclass of personae.{self.base.__name__} with a `name`")
        return kind


def is_reference(name: object) -> bool:
    """Whether it is `module:Class`, which runs whatever code is there."""
    return isinstance(name, str) and ":" in name


def references(table: object, place: str) -> Iterator[tuple[str, str]]:
    """The place and the value of every `name` in nested tables that is a reference."""
    if isinstance(table, Mapping):
        for key, value in table.items():
            if key == "name" and is_reference(value):
                yield f"{place}.{key}", value
            yield from references(value, f"{place}.{key}")
    elif isinstance(table, list | tuple):
        for number, value in enumerate(table):
            yield from references(value, f"{place}.{number}")
