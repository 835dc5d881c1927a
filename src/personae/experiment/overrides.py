"""Single values of an experiment that are set from outside its file, and file names in it."""

import tomllib
from pathlib import Path
from typing import Any

from personae.errors import ConfigError
from personae.experiment.explain import nearest
from personae.experiment.section import SYNTHETIC

CHOSEN = (
    "algorithm",
    "selection",
    "aggregation",
    "network",
)  # sections that are chosen by name, each with its own keys


def apply(raw: dict[str, Any], override: str) -> None:
    """Set one value in place. A list of named tables is entered by name or by number."""
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {override}: write it as key.of.section=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word is a string
    if why := impossible(value):
        raise ConfigError(f"--set {path.strip()}: {why}")
    *sections, leaf = path.strip().split(".")
    place: Any = raw
    for section in sections:
        if isinstance(place, list):
            named = [item for item in place if item.get("name") == section]
            numbered = place[int(section) : int(section) + 1] if section.isdecimal() else []
            found = (named or numbered)[:1]
            if not found:
                names = [str(item.get("name")) for item in place]
                raise ConfigError(f"--set {override}: there is no {section!r}{nearest(section, names)}")
            place = found[0]
        else:
            place = place.setdefault(section, {})
        if not isinstance(place, dict | list):
            raise ConfigError(f"--set {override}: {section} is a value and has nothing inside")
    if not isinstance(place, dict):
        raise ConfigError(f"--set {override}: name what to set inside {sections[-1]}")
    if begins_anew(path):
        usual = SYNTHETIC if leaf == "source" else None
        before = place.get(leaf, usual)
        if before != value and (leaf == "name" or SYNTHETIC in (before, value)):
            place.clear()
    place[leaf] = value


def impossible(value: object) -> str | None:
    """Why no setting can have this value, which TOML allows."""
    match value:
        case int() if not -(2**63) <= value < 2**63:  # Python may refuse to print it, too
            return "it has a number of more than 64 bits"
        case str() if "\0" in value:
            return "it has a text with the character \\u0000, which nothing can be called by"
    return None


def begins_anew(path: str) -> bool:
    """Whether this key decides what others its section may have: what the file says of another choice is dropped."""
    keys = path.strip().split(".")
    if keys[0] == "data" and keys[-1] == "source":
        return True
    return len(keys) > 1 and keys[-2] in CHOSEN and keys[-1] == "name"


def absolute(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The experiment with its file names meant from this folder, those that are absolute already as they are."""

    def resolve(section: Any, key: str) -> None:
        if isinstance(section, dict) and isinstance(section.get(key), str) and section[key] != SYNTHETIC:
            section[key] = str((folder / section[key]).resolve())

    def resolve_all(sources: Any) -> None:
        for source in sources.values() if isinstance(sources, dict) else ():
            resolve(source, "source")
            resolve_all(source.get("parts") if isinstance(source, dict) else None)

    resolve_all(raw.get("data"))
    resolve(raw, "weights")
    return raw
