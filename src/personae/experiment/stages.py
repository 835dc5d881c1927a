"""The schema of `[[stages]]`, and the stages that they stand for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from typing import Any, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from personae.aggregation import AGGREGATIONS, PREPARATIONS, Prepared
from personae.algorithms import AVAILABLE
from personae.core.aggregation import Aggregation, Mean
from personae.core.algorithm import AnyAlgorithm
from personae.core.layer import Layer, layered
from personae.core.own_defaults import with_own_defaults
from personae.core.selection import Everybody, Selection
from personae.core.stage import Stage, StageOptions
from personae.core.strong_start import with_strong_start
from personae.errors import ConfigError
from personae.experiment.concealed import concealed
from personae.experiment.explain import called, explain, nearest
from personae.layers import LAYERS
from personae.parts.terms import TERMS, Term
from personae.selection import SELECTIONS

ChosenT = TypeVar("ChosenT")


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class StageSection(StageOptions):
    """One stage: what it is told, and the parts that it is made of, each by its name and with its settings."""

    algorithm: dict[str, Any]  # its name and its hyper-parameters
    selection: dict[str, Any] = field(default_factory=lambda: {"name": Everybody.name})  # which clients are asked
    aggregation: dict[str, Any] = field(default_factory=lambda: {"name": Mean.name})  # how their vectors become one
    layers: tuple[dict[str, Any], ...] = ()  # what goes around the algorithm, from the inside out

    def from_strong_start(self) -> Self:
        """The same, with defaults for a strong start where the file says nothing."""
        name = str(self.algorithm.get("name"))
        known = name in AVAILABLE  # if not, that is said when it is built
        return replace(self, algorithm=with_strong_start(AVAILABLE[name], self.algorithm)) if known else self

    def built(self) -> Stage:
        """The stage that it describes."""
        options = {option.name: getattr(self, option.name) for option in fields(StageOptions)}
        algorithm = self._algorithm()
        try:
            algorithm = layered(algorithm, *self._layers())
        except ValueError as error:
            raise ConfigError(f"stages.{self.name}.layers: {error}") from error
        return Stage(**options, algorithm=algorithm, selection=self._selection(), aggregation=self._aggregation())

    def secrets(self) -> dict[str, str]:
        """By their names, the settings of the algorithm that not everybody may read, as far as they are given."""
        algorithm = self._algorithm()
        return {name: getattr(algorithm, name) for name in sorted(algorithm.secrets) if getattr(algorithm, name)}

    def resolved(self) -> dict[str, Any]:
        """What is chosen by name, with every setting, given or by default, as plain data."""
        algorithm = _plain(self._algorithm())
        algorithm |= {name: concealed(secret) for name, secret in self.secrets().items()}
        chosen = {
            "algorithm": algorithm,
            "selection": _plain(self._selection()),
            "aggregation": _plain(self._aggregation()),
        }
        named = {part: {**table, "name": getattr(self, part)["name"]} for part, table in chosen.items()}
        if self._terms():
            named["algorithm"]["terms"] = _all_plain(self._terms(), self.algorithm["terms"])
        return {**named, "layers": _all_plain(self._layers(), self.layers)}

    def _algorithm(self) -> AnyAlgorithm:
        terms = {"terms": self._terms()} if "terms" in self.algorithm else {}
        return _chosen(f"stages.{self.name}.algorithm", {**self.algorithm, **terms}, AVAILABLE)

    def _terms(self) -> list[Term]:
        """What the algorithm adds to its loss."""
        return _all_chosen(f"stages.{self.name}.algorithm.terms", self.algorithm.get("terms", ()), TERMS)

    def _selection(self) -> Selection:
        return _chosen(f"stages.{self.name}.selection", self.selection, SELECTIONS)

    def _layers(self) -> list[Layer]:
        """From the innermost to the outermost."""
        return _all_chosen(f"stages.{self.name}.layers", self.layers, LAYERS)

    def _aggregation(self) -> Aggregation:
        """The rule, with what comes before it."""
        place, rest = f"stages.{self.name}.aggregation", dict(self.aggregation)
        before = rest.pop("before", [])
        rule = _chosen(place, rest, AGGREGATIONS, also=("before",))
        steps = _all_chosen(f"{place}.before", before, PREPARATIONS)
        return Prepared(rule=rule, before=tuple(steps)) if steps else rule


def _plain(chosen: Any) -> dict[str, Any]:
    """What was chosen, written out."""
    if isinstance(chosen, Prepared):
        return {**_plain(chosen.rule), "before": [_plain(each) for each in chosen.before]}
    return {"name": chosen.name, **asdict(chosen)}


def _all_plain(chosen: Iterable[Any], given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same of several, each under the name by which it was found and is found again."""
    return [{**_plain(each), "name": table["name"]} for each, table in zip(chosen, given, strict=True)]


def _all_chosen(place: str, given: Any, registry: Mapping[str, type[ChosenT]]) -> list[ChosenT]:
    """What is registered under the name in each of these tables."""
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        raise ConfigError(f"{place} is a list of tables, each with a name")
    return [_chosen(f"{place}.{called(number, each)}", each, registry) for number, each in enumerate(given)]


def _chosen(
    place: str, options: Mapping[str, Any], registry: Mapping[str, type[ChosenT]], also: Sequence[str] = ()
) -> ChosenT:
    """What is registered under the name in these options, with the rest of them as its settings.

    `also` are valid keys beside its own.
    """
    rest = dict(options)
    name = rest.pop("name", None)
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{place}.name is {name!r}{nearest(str(name), registry)}")
    kind = registry[name]
    try:
        return TypeAdapter(kind).validate_python(with_own_defaults(kind, rest))
    except ValidationError as error:
        raise ConfigError(explain(error, kind, place, also=also)) from error
