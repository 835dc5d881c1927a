"""Single values of an experiment that are set from outside its file, and file names in it."""

import tomllib
from pathlib import Path
from typing import Any

from personae.errors import ConfigError
from personae.experiment.explain import nearest
from personae.experiment.sources import SYNTHETIC


def apply(raw: dict[str, Any], override: str) -> None:
    """Set one value in place. A list of named tables is entered by name or by number."""
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {override}: write it as key.of.section=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
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
    if names_a_source(path) and SYNTHETIC in (before := place.get(leaf, SYNTHETIC), value) and before != value:
        place.clear()
    place[leaf] = value


def names_a_source(path: str) -> bool:
    keys = path.strip().split(".")
    return (keys[0], keys[-1]) == ("data", "source")


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
