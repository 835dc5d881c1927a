"""An experiment file as it is written: plain tables, before anybody checks what they say.

What can be wrong here is told without importing PyTorch and the algorithms, which takes seconds.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from personae.errors import ConfigError
from personae.experiment.overrides import absolute, apply, begins_anew, impossible
from personae.experiment.recipes import absent, folder_of, locate
from personae.experiment.variants import EXTENDS, VARIANTS, merged, varied

PACKED = (".zip", ".faces", ".rec", ".parquet", ".txt", ".lst", ".list")  # faces in one file
DEEPEST = 20  # tables within each other, in a file
LARGEST = 2**20  # bytes: a hundred times the longest recipe


def are_faces(path: Path) -> bool:
    """Whether a path means faces, and no experiment file and no recipe."""
    if (path / "config.json").is_file():
        raise ConfigError(f"{path} is a run: give the experiment file of it with --out {path} --resume to go on")
    return path.is_dir() or (path.is_file() and path.suffix.lower() in PACKED)


def read_experiment(
    path: str | Path, overrides: Sequence[str] = (), variant: str | None = None
) -> tuple[dict[str, Any], str]:
    """The tables of an experiment file, or of the recipe of this name (`experiment/recipes.py`); and where they are.

    A file's paths are relative to its folder, those of recipes and of overrides to the current one.

    Overrides look like `stages.federate.rounds=3`. One that puts files in the place of synthetic faces,
    `data.private.source=faces`, also does away with what the file says of those, such as how many there are.
    A file may say `extends = "other.toml"`, or name a recipe there, and hold only what is different. It may hold
    `[variants]` of its experiment (`experiment/variants.py`); without naming one it is as it stands.
    """
    path = locate(path)
    raw = _read(path)
    raw = varied(raw, variant, str(path)) if variant is not None else raw
    raw.pop(VARIANTS, None)
    raw = absolute(raw, folder_of(path))
    for override in sorted(overrides, key=lambda override: not begins_anew(override.partition("=")[0])):
        apply(raw, override)
    return absolute(raw, Path.cwd()), str(path)


def variants_in(path: str | Path) -> list[str]:
    """The names of the variants that an experiment file holds."""
    return list(_read(locate(path)).get(VARIANTS, {}))


def _read(path: Path, below: frozenset[Path] = frozenset()) -> dict[str, Any]:
    if below and path.exists() and not path.is_file():  # the user named another one; a pipe may never end
        raise ConfigError(f"{path}: an experiment can only extend a plain file")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"{path}: it is larger than {LARGEST:,} bytes, which no experiment is")
        raw = tomllib.loads(content.decode())
    except FileNotFoundError as error:
        raise absent(path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read as text: {error}") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
        raise ConfigError(f"{path}: this is not valid TOML: {error}") from error
    _refuse_odd(raw, path)
    if EXTENDS not in raw:
        return raw
    other, chain = locate(str(raw.pop(EXTENDS)), path.parent), below | {path.resolve()}
    if other.resolve() in chain:
        raise ConfigError(f"{path}: {EXTENDS} leads back to {other}")
    base = absolute(_read(other, chain), folder_of(other))
    base.pop("name", None)  # another experiment may have another name and need not start again for it
    whole: dict[str, Any] = merged(base, raw, str(path))
    return whole


def _refuse_odd(raw: Mapping[str, Any], path: Path) -> None:
    """Whatever goes through an experiment later goes down all its tables, prints numbers and opens files."""
    level: list[Any] = [raw]
    for _ in range(DEEPEST):
        values = [list(each.values()) if isinstance(each, Mapping) else each for each in level]
        found = [item for items in values for item in items]
        if why := next(filter(None, map(impossible, found)), None):
            raise ConfigError(f"{path}: {why}")
        level = [item for item in found if isinstance(item, Mapping | list)]
    if level:
        raise ConfigError(f"{path}: its tables are nested more than {DEEPEST} deep; no experiment needs that")
