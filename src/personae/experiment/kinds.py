"""Whether an experiment's values are of the right kinds and within bounds, told from the text of their classes.

A misspelt key, a value of the wrong kind and one beyond its bounds are told here, before other mistakes, without
importing the algorithms and with them PyTorch, which takes seconds. Classes with the same fields are made and checked
as the whole check does it (`experiment/config.py`), which comes afterwards: what cannot be read from text is left to
it.
"""

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, create_model

from personae.core import bounds
from personae.core.bounds import Bounded
from personae.core.registry import is_reference
from personae.errors import ConfigError
from personae.experiment.explain import called, explain, nearest
from personae.experiment.section import Section
from personae.models import Network
from personae.written import Class, Expression, Register, meaning, register

PLAIN: Mapping[str, Any] = {
    **{"int": int, "float": float, "str": str, "bool": bool, "Any": Any},
    **{name: getattr(bounds, name) for name in ("PositiveInt", "NonNegativeInt", "PositiveFloat", "NonNegativeFloat")},
}
LIGHT = ("personae.data.partition", "personae.models.network")  # modules that need no PyTorch: their classes are used
REGISTERS = {
    "algorithm": ("personae.algorithms", "AVAILABLE"),
    "terms": ("personae.parts.terms", "TERMS"),
    "layers": ("personae.layers", "LAYERS"),
    "selection": ("personae.selection", "SELECTIONS"),
    "aggregation": ("personae.aggregation", "AGGREGATIONS"),
    "before": ("personae.aggregation", "PREPARATIONS"),
}
CHOSEN = {"terms", "before"}  # settings that are tables of a register themselves


def refuse_wrong_kinds(raw: Mapping[str, Any], origin: str) -> None:
    """Refuse keys that there are not, and values of the wrong kind, as far as classes can be read."""
    whole = shape_of(experiment())
    try:
        checked = TypeAdapter(whole).validate_python(raw)
        (checked.network or Network()).check()
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, whole, within=raw)}") from error
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    for stage in raw.get("stages", ()):
        for place, part, table in _chosen(stage):
            if problem := _problem(place, part, table):
                raise ConfigError(f"{origin}: {problem}")


def experiment() -> Class:
    """That of a whole experiment."""
    found = meaning(Expression("personae.experiment.config", ast.Name("Experiment")))
    assert isinstance(found, Class)
    return found


@cache
def register_of(part: str) -> Register:
    """What can be chosen by name in this part of a stage."""
    return register(*REGISTERS[part])


@cache
def shape_of(kind: Class, within: tuple[str, ...] = ()) -> Any:
    """A class with the same fields, of which pydantic knows what it knows of the class."""
    fields: dict[str, tuple[Any, Any]] = {}
    for name, (hint, default) in kind.fields.items():
        type_: Any = Any
        if name not in CHOSEN:
            with suppress(LookupError):
                type_ = _type(hint, (*within, kind.text.name))
        fields[name] = type_, _field(default)
    if kind.is_model:
        return create_model(kind.text.name, __base__=Section, **dict[str, Any](fields))
    listed = [(name, type_, dataclasses.field(default=field)) for name, (type_, field) in fields.items()]
    strict = {"__pydantic_config__": {"extra": "forbid"}}
    return dataclasses.make_dataclass(kind.text.name, listed, bases=(Bounded,), kw_only=True, namespace=strict)


def _field(default: Expression | None) -> Any:
    """What is known of a value besides its kind: whether it has to be there, and its bounds."""
    if default is None:
        return Field()
    said: dict[str, Any] = {"default": None}
    match default.text:
        case ast.Call(func=ast.Name(id="Field"), args=[], keywords=given):
            if not {"default", "default_factory"} & {each.arg for each in given}:
                said = {}
            for each in given:
                with suppress(ValueError):  # it is computed
                    said[str(each.arg)] = ast.literal_eval(each.value)
    return Field(**said)


def _chosen(stage: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The place, the part and the table of everything that a stage chooses by name."""
    place = f"stages.{stage['name']}"
    algorithm, aggregation = stage["algorithm"], dict(stage.get("aggregation", {"name": "mean"}))
    yield from _listed(f"{place}.algorithm.terms", "terms", algorithm.get("terms"))
    yield f"{place}.algorithm", "algorithm", algorithm
    yield from _listed(f"{place}.layers", "layers", stage.get("layers"))
    yield f"{place}.selection", "selection", stage.get("selection", {"name": "all"})
    before = aggregation.pop("before", None)
    yield f"{place}.aggregation", "aggregation", aggregation
    yield from _listed(f"{place}.aggregation.before", "before", before)


def _listed(place: str, part: str, tables: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for number, table in enumerate(tables if isinstance(tables, list) else ()):
        if isinstance(table, Mapping):
            yield f"{place}.{called(number, table)}", part, table


def _problem(place: str, part: str, table: Mapping[str, Any]) -> str | None:
    """What is wrong with a table that chooses something by name."""
    known, name = register_of(part), table.get("name")
    if not isinstance(name, str) or name not in known.own:
        every = {**known.own, **{point.name: point for point in entry_points(group=known.group)}}
        return (
            None if is_reference(name) or name in [*every] else f"{place}.name is {name!r}{nearest(str(name), every)}"
        )
    kind = shape_of(known.own[name])
    try:
        TypeAdapter(kind).validate_python({key: value for key, value in table.items() if key != "name"})
    except ValidationError as error:
        return explain(error, kind, place, also=("before",) if part == "aggregation" else ())
    return None


def _type(hint: Expression, within: tuple[str, ...]) -> Any:
    """What an annotation means to pydantic; raises LookupError where that cannot be read."""

    def of(part: ast.expr) -> Any:
        return _type(Expression(hint.module, part), within)

    match hint.text:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return of(ast.parse(text, mode="eval").body)
        case ast.Name(id=name) if name in PLAIN:
            return PLAIN[name]
        case ast.Name():
            return _named(hint, within)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return of(left) | of(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inside):
            values = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            return Literal[tuple(ast.literal_eval(value) for value in values)]
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[each, ast.Constant(value=value)])):
            if value is ...:
                return tuple[of(each), ...]  # type: ignore[misc]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[each, *more])):
            return Annotated[of(each), *map(_bound, more)]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, each])):
            return dict[of(key), of(each)]  # type: ignore[misc]
    raise LookupError(ast.unparse(hint.text))


def _bound(said: ast.expr) -> bounds.Bound:
    """What stands beside the type in an annotation, such as `within("(0, 1]")`."""
    match said:
        case ast.Call(func=ast.Name(id=name), args=given) if hasattr(bounds, name):
            bound: bounds.Bound = getattr(bounds, name)(*map(ast.literal_eval, given))
            return bound
    raise LookupError(ast.unparse(said))


def _named(hint: Expression, within: tuple[str, ...]) -> Any:
    match meaning(hint):
        case Class(module=module, text=text) if module in LIGHT:
            return getattr(import_module(module), text.name)
        case Class() as kind if (kind.is_model or kind.is_dataclass) and kind.text.name not in within:
            return shape_of(kind, within)
        case Expression() as alias:
            return _type(alias, within)
    raise LookupError(ast.unparse(hint.text))
