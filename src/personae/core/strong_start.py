"""Defaults for a strong start: what settings are, where a file leaves them out, in an experiment that has `weights`.

The defaults of an algorithm are for training from scratch, most of them its paper's. They take away from weights that
know faces already. What stands here in their place is the same for all algorithms, and holds for those of the settings
that an algorithm has. `docs/results/strong-start.md` has what each of them is worth.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from personae.core.own_defaults import with_own_defaults

STRONG_START: Mapping[str, Any] = {
    "head_init": "mean",  # random class embeddings pull the features to where nobody is
    "batch_norm": "eval",  # the weights come with statistics of more people than any client has
    "training": {"lr": 0.001},
    "meta": {"lr": 0.001, "batch_norm": "eval"},
}


def with_strong_start(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given for an algorithm, with those for a strong start where nothing is said."""
    filled = dict(given)
    for setting in fields(kind):
        value, said = STRONG_START.get(setting.name), given.get(setting.name)
        if isinstance(said, Mapping) and isinstance(value, Mapping):
            filled[setting.name] = {**value, **said}
        elif said is None and value is not None:
            filled[setting.name] = value
    return with_own_defaults(kind, filled)


def departures(settings: Mapping[str, Any]) -> list[str]:
    """The settings of an algorithm that are others than for a strong start, as `training.lr = 0.05 (not 0.001)`."""
    has, wanted = by_key(settings), by_key(STRONG_START)
    return [f"{key} = {has[key]} (not {value})" for key, value in wanted.items() if has.get(key, value) != value]


def by_key(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables in tables as one, with keys such as `training.lr`."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= by_key(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
