"""What a table of an experiment leaves unsaid is as the algorithm has it, and not as its section is elsewhere.

Where nothing is said, `unsupervised` trains for 100 iterations. `training = { lr = 0.01 }` changes the rate, and leaves
the iterations.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

CHOICES = ("name", "kind")  # another one of these is another section, with defaults of its own
BUDGETS = {"epochs": "iterations", "iterations": "epochs"}  # each takes the place of the other


def with_own_defaults(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given for an algorithm, with its own defaults in tables that say only a part."""
    filled = dict(given)
    for setting in fields(kind):
        said = given.get(setting.name)
        if isinstance(said, Mapping) and setting.default_factory is not MISSING:
            filled[setting.name] = {**_beside(said, setting.default_factory()), **said}
    return filled


def _beside(said: Mapping[str, Any], own: Any) -> dict[str, Any]:
    """What is special in an algorithm's `own` section, as far as it goes with what was said."""
    if not is_dataclass(own) or isinstance(own, type):
        return {}
    usual, found = asdict(type(own)()), asdict(own)
    if any(choice in said and said[choice] != found.get(choice) for choice in CHOICES):
        return {}
    special = {name: value for name, value in found.items() if value != usual[name]}
    return {name: value for name, value in special.items() if said.get(BUDGETS.get(name, "")) is None}
