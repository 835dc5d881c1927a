"""The settings of an algorithm or of a section of an experiment, with what its own source says of each.

The words are those of the class: the comment behind a field, the lines of comment above it, or the string below it. A
section such as `training` that has no words of its own has those of its class.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from personae.parts.terms import TERMS, Term

_COMMENT = re.compile(r"\s*#\s*(.+)$")
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class Parameter:
    """One key of a table in an experiment file."""

    key: str
    kind: str
    default: Any
    meaning: str


def parameters(kind: type) -> list[Parameter]:
    """Those of a dataclass or a pydantic model, each section before what is in it."""
    return list(_inside(kind, None, ""))


def first_line(kind: type) -> str:
    """What a class says of itself in one line; nothing where it has only what dataclasses generate."""
    text = kind.__doc__ or ""
    return "" if text.startswith(f"{kind.__name__}(") else text.strip().partition("\n")[0]


def _inside(kind: type, chosen: Any, prefix: str) -> Iterator[Parameter]:
    """The fields of a class, with defaults from the object that stands for it where there is one."""
    words = _meanings(kind)
    for field in _fields(kind):
        default = getattr(chosen, field.name) if chosen is not None else field.default
        sections: list[Any] = list(filter(dataclasses.is_dataclass, _alternatives(field.hint)))
        said = words.get(field.name) or (first_line(sections[0]) if len(sections) == 1 else "")
        key = prefix + field.name
        if field.hint == tuple[Term, ...]:
            yield Parameter(key, "list of sections", None, said)
            yield from _terms(f"{key}.")
        elif not sections:
            yield Parameter(key, _in_words(field.hint), default, said)
        else:
            yield Parameter(key, "section", None, said)
            yield from _choices(sections, default, f"{key}.")


def _choices(sections: Sequence[Any], default: Any, prefix: str) -> Iterator[Parameter]:
    """What is in a section; where it may be one of several, each says which of them it belongs to."""
    if len(sections) == 1:
        yield from _inside(sections[0], default, prefix)
        return
    yield Parameter(f"{prefix}name", _named(sections), default.name, "which of these")
    for section in sections:
        for inner in _inside(section, default if isinstance(default, section) else None, prefix):
            if inner.key != f"{prefix}name":  # which tells the sections apart
                yield dataclasses.replace(inner, meaning=f"{section.name}: {inner.meaning}")


def _terms(prefix: str) -> Iterator[Parameter]:
    """The terms that there are: what each of them is, what all have, and what is its own."""
    kinds = list(TERMS.values())
    yield Parameter(
        f"{prefix}name", _named(kinds), None, " ".join(f"{kind.name}: {first_line(kind)}" for kind in kinds)
    )
    common = list(_inside(Term, None, prefix))
    yield from common
    for kind in kinds:
        for inner in _inside(kind, None, prefix):
            if inner not in common:
                yield dataclasses.replace(inner, meaning=f"{kind.name}: {inner.meaning}")


def _named(sections: Sequence[Any]) -> str:
    return _one_in_words(Literal[*(section.name for section in sections)])


class _Field(NamedTuple):
    name: str
    hint: Any
    default: Any


def _fields(kind: Any) -> list[_Field]:
    if issubclass(kind, BaseModel):
        known = kind.model_fields.items()
        defaults = {
            name: field.get_default(call_default_factory=True) for name, field in known if not field.is_required()
        }
        return [_Field(name, field.annotation, defaults.get(name)) for name, field in known]
    hints = typing.get_type_hints(kind)
    return [_Field(field.name, hints[field.name], _default(field)) for field in dataclasses.fields(kind)]


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _alternatives(hint: Any) -> Sequence[Any]:
    if get_origin(hint) is typing.Annotated:
        return _alternatives(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _in_words(hint: Any) -> str:
    several = [each for each in _alternatives(hint) if each is not types.NoneType]
    words = " or ".join(_one_in_words(each) for each in several)
    return words if len(several) == len(_alternatives(hint)) else f"{words}, or left out"


def _one_in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        *others, last = [f'"{each}"' for each in get_args(hint)]
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(hint) is dict:
        return "table"
    if get_origin(hint) is tuple:
        return f"list, each a {_in_words(get_args(hint)[0])}"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _meanings(kind: type) -> dict[str, str]:
    """What the source of a class, and of those that it inherits from, says of each field; its own words count first."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if (dataclasses.is_dataclass(each) or issubclass(each, BaseModel)) and "__annotations__" in vars(each):
            found |= _comments(each)
    return found


def _comments(kind: type) -> dict[str, str]:
    """What is said of each field of a class: behind it, above it or below it, where its source is at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    found = dict(_strings_below(getattr(body, "body", ())))
    for node in getattr(body, "body", ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            behind = _COMMENT.match(lines[(node.end_lineno or 1) - 1][node.end_col_offset :])
            above = takewhile(bool, map(_COMMENT.match, reversed(lines[: node.lineno - 1])))
            if words := " ".join(match[1] for match in ([behind] if behind else reversed([*above])) if match):
                found[node.target.id] = words
    return found


def _strings_below(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(text))):
                yield name, " ".join(text.split())
