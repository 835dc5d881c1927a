"""Clear words for what is wrong in an experiment file."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from personae.experiment.renamed import replacement

_PLAIN = {  # pydantic's words, and those of the reference
    "Input should be": "this should be",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text in quotes",
    "a valid list": "a list",
}
_MISSPELT = ("extra_forbidden", "unexpected_keyword_argument")


def explain(error: ValidationError, root: Any, prefix: str = "", within: Any = None, also: Sequence[str] = ()) -> str:
    """The first problem in one line: where, what, and the valid key where one was misspelt or is from before.

    `within` is what was read: an entry of a list there is called by its name, as in overrides. `also` are keys that
    are valid beside those of the type.
    """
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] not in _MISSPELT)  # its right name may seem missing
    place = ".".join([*filter(None, [prefix]), *_steps(first["loc"], within)])
    if first["type"] in _MISSPELT:
        valid = _keys_at(root, first["loc"][:-1]) + list(also if len(first["loc"]) == 1 else ())
        return misspelt(place, str(first["loc"][-1]), valid, len(problems) - 1)
    more = _and_more(len(problems) - 1)
    if first["type"] in ("missing", "missing_argument"):
        return f"{place}: this is missing{more}"
    text = first["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    for theirs, plain in _PLAIN.items():
        text = text.replace(theirs, plain, 1)
    return f"{place}: {text}, not {first['input']!r}{more}" if _is_plain(first["input"]) else f"{place}: {text}{more}"


def misspelt(place: str, key: str, valid: Iterable[str], more: int) -> str:
    """That there is no such key at a place, and which of the valid ones may be meant; there are `more` problems."""
    if today := replacement(place):
        return f"{place}: this key is no longer there; write {today}{_and_more(more)}"
    return f"{place}: there is no such key{nearest(key, valid)}{_and_more(more)}"


def _and_more(problems: int) -> str:
    return f" (and {problems} more)" if problems else ""


def _steps(place: Sequence[int | str], within: Any) -> Iterator[str]:
    for step in place:
        try:
            within = within[step]
        except (KeyError, IndexError, TypeError):
            within = None  # a key that is missing, or the tag of a section
        yield called(step, within)


def called(step: int | str, entry: Any) -> str:
    """How an entry is called: by its key, or in a list by its name where it has one that can stand in a key."""
    name = entry.get("name") if isinstance(step, int) and isinstance(entry, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"[\w-]+", name) else str(step)


def _keys_at(kind: Any, place: Sequence[int | str]) -> list[str]:
    """The valid keys of the section at this place below a type."""
    for step in place:
        inside = get_args(kind)
        if isinstance(step, int):
            kind = inside[0]
        elif _is_union(kind):  # of sections that a tag tells apart, and the step is the tag
            kind = next(item for item in inside if step in _tags(item))
        elif get_origin(kind) is dict:
            kind = inside[1]
        else:
            kind = _hints(kind)[step]
        if _is_union(kind):
            sections = [item for item in get_args(kind) if item is not types.NoneType]
            kind = sections[0] if len(sections) == 1 else kind
    return list(_hints(kind))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (typing.Union, types.UnionType)


def _tags(kind: Any) -> set[Any]:
    return {value for hint in _hints(kind).values() if get_origin(hint) is Literal for value in get_args(hint)}


def _hints(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def nearest(word: str, valid: Iterable[str]) -> str:
    known = list(valid)
    longer = [each for each in known if word and each.startswith(word)]
    close = longer[:1] or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)
