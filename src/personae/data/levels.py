"""Which of several levels of folders is the identity: ROOT/<person>/frontal, or ROOT/<group>/<person>?"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["first", "last"]
Folder = tuple[str, ...]
"""The names on the way from the root to images."""

_SHOWN = 3


@dataclass(frozen=True)
class Decision:
    """The level, and a line that says why; where it is in doubt, somebody has to choose."""

    level: Level
    why: str = ""
    doubtful: bool = False


def decide(folders: Collection[Folder], chosen: Level | None) -> Decision:
    """By how often the names in the second level come again, and by how many there are in each level."""
    if chosen is not None or all(len(folder) == 1 for folder in folders):
        return Decision(chosen or "first")
    firsts = {folder[0] for folder in folders}
    with_images = {folder[0] for folder in folders if len(folder) == 1}
    if with_images == firsts and len(firsts) > 1:
        some = _some("/".join(folder) for folder in folders if len(folder) > 1)
        return Decision("first", f"what is in folders in a person's folder ({some}) is taken for the person's")
    if with_images:
        mixed = _some(firsts - with_images or firsts)
        return _doubt(f"some folders hold images and others ({mixed}) hold folders", firsts, folders)
    if max(map(len, folders)) > 2:
        return _doubt(f"folders ({_some(firsts)}) hold folders that hold folders", firsts, folders)
    names = {folder[1] for folder in folders}
    recurring = len(folders) >= 2 * len(names)
    if recurring and len(firsts) > len(names):
        why = f"its {len(firsts)} folders are taken for people: those in them have the same names ({_some(names)})"
        return Decision("first", why + "; " + _otherwise("last"))
    enough = 2 * len(firsts) if recurring else len(firsts) + 1
    if len(firsts) > 1 and len(names) >= enough and len(folders) >= len(firsts) ** 2:
        domains = f"its {len(firsts)} folders ({_some(firsts)}) are taken for domains"
        return Decision("last", f"{domains}, and the {len(folders)} folders in them for people; {_otherwise('first')}")
    return _doubt(f"folders ({_some(firsts)}) hold folders ({_some(names)})", firsts, folders)


def _otherwise(level: Level) -> str:
    return f"if people are the {level} level of folders, say so with identity_level (--identity-level {level})"


def _doubt(what: str, firsts: Collection[str], folders: Collection[Folder]) -> Decision:
    below = f"{next(iter(firsts))} in it" if len(firsts) == 1 else "a folder in it"
    people = "1 person" if len(firsts) == 1 else f"{len(firsts)} people"
    return Decision(
        "first",
        f"{what}, and it cannot be told which of them are people; say it with identity_level (--identity-level),"
        f' where "first" makes {people} and "last" {len(folders)}, or give {below}',
        doubtful=True,
    )


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:_SHOWN]) + (" ..." if len(every) > _SHOWN else "")
