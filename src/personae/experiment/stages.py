"""The schema of `[[stages]]`, and the stages that they stand for."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from personae.aggregation import AGGREGATIONS, PREPARATIONS, Prepared
from personae.algorithms.carrying import Carry
from personae.algorithms.others import AVAILABLE
from personae.core.aggregation import Aggregation, Mean
from personae.core.algorithm import AnyAlgorithm
from personae.core.selection import Everybody, Selection
from personae.core.server_step import ServerStep
from personae.core.stage import Side, Stage
from personae.errors import ConfigError
from personae.experiment.explain import explain, nearest
from personae.experiment.section import Section
from personae.selection import SELECTIONS

ChosenT = TypeVar("ChosenT")


class StageSection(Section):
    """One stage. `algorithm` holds the algorithm's name and its hyper-parameters; `selection` and
    `aggregation` likewise."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    label: str = ""
    after: str | None = None
    rounds: int = 1
    clients: Side = "all"
    aggregation: dict[str, Any] = Field(default_factory=lambda: {"name": Mean.name})
    selection: dict[str, Any] = Field(default_factory=lambda: {"name": Everybody.name})
    quorum: float = 0.5
    evaluate_every: int = 0
    server: ServerStep = Field(default_factory=ServerStep)
    carry: Carry = Field(default_factory=Carry)
    algorithm: dict[str, Any]

    def built(self) -> Stage:
        """The stage that it describes."""
        chosen = {"algorithm", "selection", "aggregation", "carry"}
        options = {name: value for name, value in self if name not in chosen}
        try:
            return Stage(
                **options,
                algorithm=self.carry.around(self._algorithm()),
                selection=self._selection(),
                aggregation=self._aggregation(),
            )
        except ValueError as error:
            raise ConfigError(f"stages.{self.name}.carry: {error}") from error

    def resolved(self) -> dict[str, Any]:
        """What is chosen by name, with every setting, given or by default, as plain data."""
        name = self.algorithm["name"]  # by which it is found again
        return {
            "algorithm": {**_plain(self._algorithm()), "name": name},
            "selection": _plain(self._selection()),
            "aggregation": _plain(self._aggregation()),
        }

    def _algorithm(self) -> AnyAlgorithm:
        return _chosen(f"stages.{self.name}.algorithm", self.algorithm, AVAILABLE)

    def _selection(self) -> Selection:
        return _chosen(f"stages.{self.name}.selection", self.selection, SELECTIONS)

    def _aggregation(self) -> Aggregation:
        """The rule, with what comes before it."""
        place, rest = f"stages.{self.name}.aggregation", dict(self.aggregation)
        before = rest.pop("before", [])
        rule = _chosen(place, rest, AGGREGATIONS)
        if not isinstance(before, list | tuple) or not all(isinstance(each, Mapping) for each in before):
            raise ConfigError(f"{place}.before is a list of tables, each with a name")
        steps = [_chosen(f"{place}.before.{number}", each, PREPARATIONS) for number, each in enumerate(before)]
        return Prepared(rule=rule, before=tuple(steps)) if steps else rule


def _plain(chosen: Any) -> dict[str, Any]:
    """What was chosen, written out."""
    if isinstance(chosen, Prepared):
        return {**_plain(chosen.rule), "before": [_plain(each) for each in chosen.before]}
    return {"name": chosen.name, **dataclasses.asdict(chosen)}


def _chosen(place: str, options: Mapping[str, Any], registry: Mapping[str, type[ChosenT]]) -> ChosenT:
    """What is registered under the name in these options, with the rest of them as its settings."""
    rest = dict(options)
    name = rest.pop("name", None)
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{place}.name is {name!r}{nearest(str(name), registry)}")
    kind = registry[name]
    try:
        return TypeAdapter(kind).validate_python(rest)
    except ValidationError as error:
        raise ConfigError(explain(error, kind, place)) from error
