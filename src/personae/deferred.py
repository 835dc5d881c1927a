"""Packages whose names are imported when they are first asked for: some take seconds, and most commands need few."""

import sys
from collections.abc import Callable
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
        value = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, value)  # next time it is found without asking here
        return value

    return find
