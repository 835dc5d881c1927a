"""Names of benchmarks: as they are written before a path, and those of what lies at one."""

import re
from pathlib import Path

from personae.data.readers.bins import SUFFIX
from personae.data.readers.groups import find_groups
from personae.data.readers.official import LAYOUTS, find_layouts
from personae.errors import ConfigError


def benchmarks_at(path: Path) -> list[str]:
    """The benchmarks that are to be evaluated there, by name."""
    if not path.is_dir():
        return [path.stem] if path.suffix.lower() == SUFFIX else []
    return ["rfw"] if find_groups(path) else [each.name for each in find_layouts(path)]


def split_name(item: str) -> tuple[str | None, Path]:
    """NAME=PATH, or a path without a name; either path may have a = in it."""
    name, sign, path = item.partition("=")
    if not sign or "/" in name:
        name, path = "", item
    if not path:
        raise ConfigError(f"{item}: there is no path; write NAME=PATH, or a path alone")
    return name or None, Path(path)


def canonical(name: str) -> str:
    """`IJB-C` is `ijbc`, and `agedb_30` is `agedb30`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def named_layout(name: str | None) -> str | None:
    """The benchmark whose own layout this name stands for; None for any other name."""
    plain = canonical(name or "")
    return plain if plain in {each.name for each in LAYOUTS} else None
