"""What is read of algorithms from their text is what their classes are, and errors are those of the whole check."""

import dataclasses
import typing
from typing import Any

import pytest
from pydantic import TypeAdapter

from personae.algorithms import ALGORITHMS
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.experiment.keys import Class, algorithms, fields_of, refuse_unknown_keys

ORIGIN = "exp.toml"


def experiment(algorithm: dict[str, Any]) -> dict[str, Any]:
    return {"name": "x", "stages": [{"name": "a", "algorithm": algorithm}]}


def refused(check: Any, raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as found:
        check(raw, ORIGIN)
    return str(found.value)


def same(text: Class, kind: type) -> list[tuple[str, ...]]:
    """That the fields of a class and of its sections are those in its text; gives the places of the sections."""
    hints = typing.get_type_hints(kind)
    found = fields_of(text)
    assert list(found) == [field.name for field in dataclasses.fields(kind)]
    sections = {name: hint for name in found if dataclasses.is_dataclass(hint := hints[name])}
    assert {name for name, section in found.items() if section} == set(sections)
    inside = [(name, *place) for name, hint in sections.items() for place in same(found[name], hint)]
    return [*((name,) for name in sections), *inside]


def test_every_algorithm_is_found():
    assert algorithms().keys() == ALGORITHMS.keys()
    for name, text in algorithms().items():
        assert (text.module, text.text.name) == (ALGORITHMS[name].__module__, ALGORITHMS[name].__name__)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_unknown_key_is_told_as_by_the_whole_check(name: str):
    """At every place of every algorithm where a section can be written: a key like a valid one, and one like none."""
    for place in [(), *same(algorithms()[name], ALGORITHMS[name])]:
        for key in ("hed_init", "lrr", "zzz"):
            table: dict[str, Any] = {key: 1}
            for section in reversed(place):
                table = {section: table}
            raw = experiment({"name": name, **table})
            expected = refused(parse_experiment, raw)
            assert ".".join(("exp.toml: stages.a.algorithm", *place, f"{key}: there is no such key")) in expected
            assert refused(refuse_unknown_keys, raw) == expected


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedpe", "rows": "mean"},  # a key of the past
        {"name": "fedpe", "training": {"prox": 0.1}},
        {"name": "fedpe", "one": 1, "training": {"two": 2, "three": 3}, "four": 4},
    ],
)
def test_old_keys_and_several_at_once(algorithm: dict[str, Any]):
    raw = experiment(algorithm)
    assert refused(refuse_unknown_keys, raw) == refused(parse_experiment, raw)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_valid_key_passes(name: str):
    defaults = TypeAdapter(ALGORITHMS[name]).dump_python(ALGORITHMS[name]())
    refuse_unknown_keys(experiment({"name": name, **defaults}), ORIGIN)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"stages": 3},
        {"stages": [3, {"name": "a"}, {"name": "a", "algorithm": "fedpe"}, {"algorithm": {"name": "fedpe", "zzz": 1}}]},
        {"stages": [{"name": "a", "algorithm": {"name": "of.another:Package", "zzz": 1}}]},
        {"stages": [{"name": "a", "algorithm": {"name": ["fedpe"], "zzz": 1}}]},
        {"stages": [{"name": "a", "algorithm": {"name": "fedpe", "training": 3, "terms": [{"zzz": 1}]}}]},
        {"stages": [{"name": "a", "algorithm": {"name": "cluster", "clustering": {"name": "cfinch", "zzz": 1}}}]},
    ],
)
def test_what_cannot_be_read_is_left_to_the_whole_check(raw: dict[str, Any]):
    refuse_unknown_keys(raw, ORIGIN)
