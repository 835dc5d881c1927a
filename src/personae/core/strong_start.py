"""Defaults for a strong start: what settings are, where a file leaves them out, in an experiment that has `weights`.

The defaults of an algorithm are for training from scratch, most of them its paper's. They take away from weights that
know faces already. What stands here in their place is the same for all algorithms, and holds for those of the settings
that an algorithm has. `docs/results/strong-start.md` has what each of them is worth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

STRONG_START: Mapping[str, Any] = {
    "head_init": "mean",  # random class embeddings pull the features to where nobody is
    "batch_norm": "eval",  # the weights come with statistics of more people than any client has
    "training": {"lr": 0.005},
    "meta": {"lr": 0.01, "batch_norm": "eval"},
}


def with_strong_start(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given for an algorithm, with those for a strong start where nothing is said."""
    filled = dict(given)
    for setting in fields(kind):
        value, said = STRONG_START.get(setting.name), given.get(setting.name)
        if said is None and isinstance(value, Mapping) and setting.default_factory is not MISSING:
            filled[setting.name] = {**asdict(setting.default_factory()), **value}
        elif isinstance(said, Mapping) and isinstance(value, Mapping):
            filled[setting.name] = {**value, **said}
        elif said is None and value is not None:
            filled[setting.name] = value
    return filled


def departures(settings: Mapping[str, Any], wanted: Mapping[str, Any] = STRONG_START) -> Iterator[str]:
    """The settings of an algorithm that are others than for a strong start, such as `lr = 0.05 (not 0.001)`."""
    for name, value in wanted.items():
        said = settings.get(name, value)
        if isinstance(value, Mapping):
            yield from departures(said, value) if isinstance(said, Mapping) else ()
        elif said != value:
            yield f"{name} = {said} (not {value})"
