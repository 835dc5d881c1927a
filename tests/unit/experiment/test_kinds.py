"""What is read of an experiment's classes from their text is what they are, and errors are those of the whole check."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from personae.aggregation import AGGREGATIONS, PREPARATIONS
from personae.algorithms import ALGORITHMS, AVAILABLE
from personae.core.bounds import declared
from personae.errors import ConfigError
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.kinds import experiment, refuse_wrong_kinds, register_of, shape_of
from personae.experiment.reading import read_experiment, variants_in
from personae.experiment.recipes import recipes
from personae.layers import LAYERS
from personae.parts.terms import TERMS
from personae.selection import SELECTIONS

ORIGIN = "exp.toml"
REGISTRIES: dict[str, Any] = {
    "algorithm": AVAILABLE,
    "terms": TERMS,
    "layers": LAYERS,
    "selection": SELECTIONS,
    "aggregation": AGGREGATIONS,
    "before": PREPARATIONS,
}
EVERY = [(part, name) for part, registry in REGISTRIES.items() for name in getattr(registry, "own", registry)]


def whole(stage: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"name": "x", **others, "stages": [{"name": "a", "algorithm": {"name": "fedpe"}, **stage}]}


def around(part: str, name: str, table: dict[str, Any]) -> dict[str, Any]:
    """An experiment with this table in its part."""
    table = {"name": name, **table}
    match part:
        case "terms":
            return whole({"algorithm": {"name": "fedpe", "terms": [table]}})
        case "before":
            return whole({"aggregation": {"name": "median", "before": [table]}})
        case "layers":
            return whole({"layers": [table]})
    return whole({part: table})


def at(path: tuple[str, ...], value: Any) -> Any:
    """Tables with this value at the end of a path."""
    for step in reversed(path):
        value = {step: value}
    return value


def settings(kind: type, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The same, with all that has to be there."""
    inside = next((each for each in kinds_in(hints_of(kind)[path[0]]) if is_section(each)), None)
    found = settings(inside, path[1:], value) if inside and path[1:] else value
    return {**needed(kind), path[0]: found}


def problem(check: Any, raw: dict[str, Any]) -> str:
    """What a check says."""
    try:
        check(raw, ORIGIN)
    except ConfigError as found:
        return str(found)
    return ""


def needed(kind: type) -> dict[str, Any]:
    """A value for each setting that has no default."""
    values = {int: 3, float: 0.5, str: "x", tuple[float, ...]: [0.5]}
    hints = typing.get_type_hints(kind)
    missing = [field for field in dataclasses.fields(kind) if field.default is field.default_factory]
    return {field.name: values[hints[field.name]] for field in missing}


def hints_of(kind: Any) -> dict[str, Any]:
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def kinds_in(hint: Any) -> list[Any]:
    """A type and its alternatives, without their bounds."""
    return [getattr(each, "__origin__", each) for each in (hint, *typing.get_args(hint))]


def beyond(hint: Any) -> Iterator[float]:
    """Numbers that the bounds of a setting refuse."""
    numbers: list[float] = (
        [-2, 0, 1, 10**10] if int in kinds_in(hint) else [-2.0, 0.0, 0.5, 1.0, 2.5, math.inf, math.nan]
    )
    for bound in declared(hint):
        yield from (number for number in numbers if not bound.holds(number))


def is_section(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, BaseModel))


def places(kind: Any, found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every setting, also in sections, with its type; after a look at whether the text says the same."""
    real, read = hints_of(kind), hints_of(found)
    assert list(read) == list(real)
    for name, hint in real.items():
        section = next((each for each in (hint, *typing.get_args(hint)) if is_section(each)), None)
        if section is None or name in ("terms", "before") or read[name] is Any:
            assert read[name] in (hint, Any), (*path, name)
            yield (*path, name), read[name]
        elif section.__name__ not in path:
            inside = next(each for each in (read[name], *typing.get_args(read[name])) if is_section(each))
            assert inside.__name__ == section.__name__
            yield (*path, name), inside
            yield from places(section, inside, (*path, name))


def test_registers_are_read_as_they_are():
    for part, registry in REGISTRIES.items():
        own, read = getattr(registry, "own", registry), register_of(part)
        assert read.group == getattr(registry, "group", "")
        assert {name: (kind.module, kind.text.name) for name, kind in read.own.items()} == {
            name: (kind.__module__, kind.__name__) for name, kind in own.items()
        }
        assert list(read.own) == list(own)


@pytest.mark.parametrize(("part", "name"), EVERY)
def test_mistakes_are_told_as_by_the_whole_check(part: str, name: str):
    """At every place: values of kinds that nothing takes, and keys like a valid one and like none."""
    kind = REGISTRIES[part][name]
    start = needed(kind)
    for path, read in [((), None), *places(kind, shape_of(register_of(part).own[name]))]:
        wrong: list[Any] = [] if read is None else [{"none": [{}]}, [[3]], 3.25]
        if read is None or is_section(read):
            wrong += [{key: 1} for key in ("hed_init", "lrr", "zzz")]
        for value in wrong:
            raw = around(part, name, {**start, **at(path, value)})
            told = problem(refuse_wrong_kinds, raw)
            if told:
                assert told == problem(parse_experiment, raw), path
            else:  # a whole number is a number, too
                assert value == 3.25 or (read is Any and path[-1] in ("terms", "clustering")), (path, value)


@pytest.mark.parametrize(("part", "name"), EVERY)
def test_values_beyond_their_bounds_are_told_as_by_the_whole_check(part: str, name: str):
    kind = REGISTRIES[part][name]
    for path, hint in places(kind, shape_of(register_of(part).own[name])):
        for value in beyond(hint):
            raw = around(part, name, settings(kind, path, value))
            told = problem(refuse_wrong_kinds, raw)
            assert f"{path[-1]} is {value}, it must" in told, path
            assert told == problem(parse_experiment, raw), path


def test_values_of_stages_and_sections_beyond_their_bounds_are_told_as_by_the_whole_check():
    found = 0
    for path, hint in places(Experiment, shape_of(experiment())):
        for value in beyond(hint):
            table = at(path[1:], value) if path[0] == "stages" else at(path, value)
            raw = whole(table) if path[0] == "stages" else whole({}, **table)
            told = problem(refuse_wrong_kinds, raw)
            assert f"{path[-1]} is {value}, it must" in told, path
            assert told == problem(parse_experiment, raw), path
            found += 1
    assert found


@pytest.mark.parametrize(
    "raw",
    [
        whole({}, seeed=1),
        whole({}, seed="x"),
        whole({}, seed=-1),
        whole({}, threads=2000),
        whole({}, evaluation={"fars": 0.1}),
        whole({}, evaluation={"folds": 1}),
        whole({}, data={"private": {"identities": "many"}}),
        whole({}, partition={"by": "equel"}),
        whole({}, network={"height": 64.5}),
        whole({}, network={"name": "nosuch"}),
        whole({}, network={"name": "sphere20", "norm": "group"}),
        whole({}, network={"embedding": 0}),
        whole({}, partition={"clients": 0}),
        whole({}, partition={"clients": 4, "by": "domain"}),
        whole({"rounds": -1}),
        whole({}, firewall={"enabled": "perhaps"}),
        whole({}, checkpoints=3),
        whole({"rounds": "ten"}),
        whole({"round": 10}),
        whole({"server": {"kind": "adaam"}}),
        whole({"layers": 3}),
        whole({"algorithm": {"name": "fedpee"}}),
        whole({"algorithm": {}}),
        whole({"algorithm": {"name": ["fedpe"]}}),
        whole({"selection": {"name": "count"}}),
        whole({"selection": {"name": "al"}}),
        whole({"aggregation": {"name": "mean", "befor": []}}),
        whole({"algorithm": {"name": "fedpe", "rows": "mean"}}),  # a key of the past
        whole({"algorithm": {"name": "fedpe", "training": {"prox": 0.1}}}),
        whole({"algorithm": {"name": "fedpe", "one": 1, "training": {"two": 2, "three": 3}, "four": 4}}),
        {"name": "x", "stages": 3},
        {"name": "x", "stages": [{"name": "a"}]},
        {"stages": []},
    ],
)
def test_mistakes_elsewhere_are_told_as_by_the_whole_check(raw: dict[str, Any]):
    assert problem(refuse_wrong_kinds, raw) == problem(parse_experiment, raw) != ""


def test_every_section_of_an_experiment_is_read():
    for path, read in places(Experiment, shape_of(experiment())):
        assert read is not Any or path[-1] == "parts", path  # sources within a source


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_default_passes(name: str):
    defaults = TypeAdapter(ALGORITHMS[name]).dump_python(ALGORITHMS[name]())
    refuse_wrong_kinds(whole({"algorithm": {"name": name, **defaults}}), ORIGIN)


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_passes(name: str):
    for variant in (None, *variants_in(name)):
        refuse_wrong_kinds(*read_experiment(name, variant=variant))


@pytest.mark.parametrize(
    "stage",
    [
        {"algorithm": {"name": "of.another:Package", "zzz": 1}},
        {"algorithm": {"name": "cluster", "clustering": {"name": "cfinch", "zzz": 1}}},
        {"algorithm": {"name": "fedpe", "terms": 3}},
        {"layers": [{"name": "of.another:Package", "zzz": 1}]},
        {"algorithm": {"name": "fedpe", "training": {"epochs": 1, "iterations": 1}}},
    ],
)
def test_what_cannot_be_read_is_left_to_the_whole_check(stage: dict[str, Any]):
    assert not problem(refuse_wrong_kinds, whole(stage))
    assert problem(parse_experiment, whole(stage))
