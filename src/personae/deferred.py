"""Packages whose names are imported when they are first asked for: some take seconds, and most commands need few."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def deferred(package: str, **modules: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: each of its modules with the names that come from there.

    A name must not be that of a module: whoever imports the module puts it in the place of the name.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}
    assert not places.keys() & modules.keys(), places.keys() & modules.keys()

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with importing():
            value = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, value)  # next time it is found without asking here
        return value

    return find


@contextmanager
def importing() -> Iterator[None]:
    """Import much in here: Python does not look for garbage meanwhile, which is a fifth of the time and finds none."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()
