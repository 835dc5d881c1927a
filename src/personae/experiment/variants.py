"""Variants of an experiment, such as the rows of a table: what each changes, in the experiment's own file.

    [variants]
    fedgc = {}                                                     # the experiment as it stands
    fedpe.stages.federate.algorithm.regulariser = "none"
    half.stages.federate.selection = { name = "share", share = 0.5 }
    pretrained.until = "pretrain"                                  # no further than this stage

A variant runs one stage and those that it continues from: the stage named by `until`, by default the last. The rest of
its table says what is different: tables are merged key by key, stages are entered by name, and a table that changes its
own `name` (another algorithm, another network) starts again.
"""

from collections.abc import Mapping
from typing import Any

from personae.errors import ConfigError
from personae.experiment.explain import nearest

VARIANTS, EXTENDS = "variants", "extends"


def varied(raw: Mapping[str, Any], variant: str, origin: str) -> dict[str, Any]:
    """The experiment with what this variant changes."""
    known = raw.get(VARIANTS, {})
    if not isinstance(known, dict) or not all(isinstance(each, dict) for each in known.values()):
        raise ConfigError(f"{origin}: {VARIANTS} is a table of tables, one for each variant")
    if variant not in known:
        advice = nearest(variant, known) if known else "; this experiment has no variants"
        raise ConfigError(f"{origin}: there is no variant {variant!r}{advice}")
    place = f"{origin}: {VARIANTS}.{variant}"
    changes = {key: value for key, value in known[variant].items() if key != "until"}
    whole = merged({key: value for key, value in raw.items() if key != VARIANTS}, changes, place)
    stages = whole.get("stages") or [{}]
    return {**whole, "stages": _chain(stages, known[variant].get("until", stages[-1].get("name")), place)}


def merged(base: Any, changes: Any, place: str) -> Any:
    """What results when `changes` are made to `base`, by the rules above."""
    if not isinstance(changes, dict) or not isinstance(base, dict | list):
        return changes
    if isinstance(base, list):
        names = [str(entry.get("name")) for entry in base]
        for name in changes:
            if name not in names:
                raise ConfigError(f"{place}: there is no {name!r}{nearest(name, names)}")
        return [
            merged(entry, changes.get(name, {}), f"{place}.{name}") for name, entry in zip(names, base, strict=True)
        ]
    if "name" in changes and "name" in base and changes["name"] != base["name"]:
        return changes
    inside = {key: merged(base.get(key), value, f"{place}.{key}") for key, value in changes.items()}
    return {**base, **inside}


def _chain(stages: list[dict[str, Any]], last: Any, place: str) -> list[dict[str, Any]]:
    """The stage called `last` and those before it that it continues from, in order."""
    names = [stage.get("name") for stage in stages]
    if last not in names:
        raise ConfigError(f"{place}.until: there is no {last!r}{nearest(str(last), map(str, names))}")
    chain: list[dict[str, Any]] = []
    position: int | None = names.index(last)
    while position is not None:
        stage = stages[position]
        chain.insert(0, stage)
        after = stage.get("after", names[position - 1] if position else "")
        position = names.index(after) if after in names[:position] else None
    return chain
