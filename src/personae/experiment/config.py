"""The schema of an experiment file."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from personae.aggregation import AGGREGATIONS, PREPARATIONS, Prepared
from personae.algorithms.carrying import Carry
from personae.algorithms.others import AVAILABLE, is_reference
from personae.core.aggregation import Aggregation, Mean
from personae.core.algorithm import AnyAlgorithm
from personae.core.selection import Everybody, Selection
from personae.core.server_step import ServerStep
from personae.core.stage import Recipe, Side, Stage, predecessors
from personae.data import PartitionPlan
from personae.data.decoding import Crop, Handling, Missed
from personae.data.readers.levels import Level
from personae.data.readers.naming import named_layout
from personae.data.readers.official import LAYOUTS
from personae.data.synthetic import DOMAINS
from personae.errors import ConfigError
from personae.evaluation.personalized import AmongEverybody
from personae.experiment.explain import explain, nearest
from personae.experiment.labels import Unlabelled, require_labels, unlabelled_sides
from personae.experiment.recipes import absent, folder_of, locate
from personae.experiment.variants import EXTENDS, VARIANTS, merged, varied
from personae.models import Network
from personae.runtime.firewall import Firewall
from personae.selection import SELECTIONS

SYNTHETIC = "synthetic"

ChosenT = TypeVar("ChosenT")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Section):
    """Where faces come from: rendered ones, or a folder, zip or list on disk; optionally some of the identities.

    `parts` joins several sources into one set instead: each name becomes a domain with people of its own.
    """

    source: str = SYNTHETIC  # "synthetic", or a path
    identities: int | None = Field(default=None, ge=1)  # how many; by default all there are
    first: int = Field(default=0, ge=0)  # number of the first one
    images: int = Field(default=20, ge=1)  # synthetic: images of each identity
    domain: str = next(iter(DOMAINS))  # synthetic: whose people, captured how
    seed: int | None = None  # synthetic: by default the experiment's seed
    min_images: int = Field(default=1, ge=1)  # files: leave identities with fewer images out
    skip_unreadable: bool = False  # files: leave images that cannot be used out
    unlabelled: bool = False  # nobody says who is on the images; labels that are there all the same are not used
    crop: Crop | None = None  # files: cut the face out of each photograph, with the extra `align`
    missed: Missed | None = None  # with crop: what becomes of photographs in which no face is found
    as_they_are: bool = False  # files: take images that cannot be aligned faces by their sizes
    layout: str | None = None  # files: the benchmark that is meant where a folder has the lists of several
    identity_level: Level | None = None  # files: of folders in folders, those that are people
    parts: dict[str, "Source"] | None = None

    def all_parts(self) -> dict[str, "Source"]:
        """The sources that are joined, by name; this one alone, without a name, where nothing is joined."""
        return {"": self} if self.parts is None else self.parts

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        # What says the same as nothing may stand there: the resolved form of an experiment is one, too.
        given = {name for name, known in type(self).model_fields.items() if getattr(self, name) != known.default}
        if self.parts is not None:
            if len(self.parts) < 2 or given != {"parts"}:
                raise ValueError("parts are two sources or more, and go with nothing else")
            return self
        if self.source == SYNTHETIC:
            of_files = {"min_images", "skip_unreadable", "crop", "missed", "as_they_are", "layout", "identity_level"}
            wrong = given & of_files
            if self.identities is None:
                raise ValueError("synthetic faces need the number of identities")
        else:
            wrong = given & {"images", "domain", "seed"}
            if self.unlabelled and not wrong:
                wrong = given & {"identities", "first", "min_images"}
        if wrong:
            files = "unlabelled faces from files" if self.unlabelled else "faces from files"
            kind = "synthetic faces" if self.source == SYNTHETIC else files
            raise ValueError(f"{', '.join(sorted(wrong))} does not go with {kind}; leave it out")
        if self.missed and not self.crop:
            raise ValueError("missed goes with crop, which looks for faces")
        if self.layout is not None and named_layout(self.layout) is None:
            raise ValueError(
                f"no layout is called {self.layout!r}{nearest(self.layout, [each.name for each in LAYOUTS])}"
            )
        return self

    def handled(self, handling: Handling) -> "Source":
        """The same faces from files, their images handled so where that says anything."""
        if self.parts is not None:
            return self.model_copy(
                update={"parts": {name: part.handled(handling) for name, part in self.parts.items()}}
            )
        if self.source == SYNTHETIC:
            return self
        return self.model_copy(update={option: value for option, value in handling.items() if value})


class Data(_Section):
    """The faces of an experiment. The three sets should have no person in common."""

    public: Source | None = None  # the server may have these
    private: Source | None = None  # divided among the clients; over a network they have their own
    heldout: Source | None = None  # nobody trains on these

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        for name in ("public", "heldout"):
            source: Source | None = getattr(self, name)
            if source is not None and any(part.unlabelled for part in source.all_parts().values()):
                raise ValueError(f"{name} faces must be labelled; unlabelled goes with private ones")
        return self


class Evaluation(_Section):
    """How models are judged."""

    fars: tuple[float, ...] = (1e-1, 1e-2, 1e-3)  # false accept rates at the server's benchmarks
    client_fars: tuple[float, ...] = (1e-1, 1e-2)  # and on each client's own faces
    folds: int = Field(default=10, ge=2)
    pairs_per_fold: int = Field(default=600, ge=2)
    mirror: bool = True  # add the vector of the mirror image
    personalized: AmongEverybody | None = None  # each client's people among everybody's test images

    @model_validator(mode="after")
    def _rates(self) -> Self:
        for rate in (*self.fars, *self.client_fars):
            if not 0 < rate <= 1:
                raise ValueError(f"a false accept rate of {rate} is not in (0, 1]")
        return self


class StageSection(_Section):
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

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        if isinstance(given, dict) and "participation" in given:
            raise ValueError('participation is now selection = { name = "share", share = ... }; change it')
        return given


class Experiment(_Section):
    """Everything that determines a result."""

    name: str = Field(min_length=1)
    seed: int = 0
    weights: str | None = None  # a file to start from instead of random weights
    threads: int = Field(default=1, ge=1)  # of the server's own work; the result depends on it in the last bits
    data: Data = Data()
    partition: PartitionPlan = Field(default_factory=PartitionPlan)
    network: Network = Field(default_factory=Network)
    stages: tuple[StageSection, ...]
    evaluation: Evaluation = Evaluation()
    firewall: Firewall = Field(default_factory=Firewall)

    @model_validator(mode="after")
    def _has_stages(self) -> Self:
        if not self.stages:
            raise ValueError("an experiment needs at least one of [[stages]]")
        return self

    def handled(self, handling: Handling) -> Self:
        """The same experiment with the images of all its files handled so."""
        sources = {role: source.handled(handling) for role, source in self.data if isinstance(source, Source)}
        return self.model_copy(update={"data": self.data.model_copy(update=sources)})

    def require_private(self) -> Source:
        """The faces to divide among clients that are all here."""
        if self.data.private is None:
            raise ConfigError(
                "data.private is missing: say in [data.private] which faces are divided among the clients; only "
                "personae serve does without, as its clients have their own"
            )
        return self.data.private

    @property
    def recipe(self) -> Recipe:
        return tuple(map(_stage, self.stages))

    @property
    def unlabelled(self) -> Unlabelled:
        """The sides on which clients have no labels; of clients elsewhere, nothing is known."""
        sources = self.data.private.all_parts() if self.data.private else {}
        parts = {name: part.unlabelled for name, part in sources.items()}
        return unlabelled_sides(parts, self.partition)

    def resolved(self) -> dict[str, Any]:
        """Every value, given or by default, as plain data."""
        plain: dict[str, Any] = json.loads(self.model_dump_json())
        for section, given in zip(plain["stages"], self.stages, strict=True):
            name = given.algorithm["name"]  # by which it is found again
            section["algorithm"] = {**_plain(_algorithm(given.name, given.algorithm)), "name": name}
            section["selection"] = _plain(_selection(given.name, given.selection))
            section["aggregation"] = _plain(_aggregation(given.name, given.aggregation))
        return plain


def load_experiment(path: str | Path, overrides: Sequence[str] = (), variant: str | None = None) -> Experiment:
    """Read an experiment file, or the recipe of this name (`experiment/recipes.py`).

    A file's paths are relative to its folder, those of recipes and of overrides to the current one.

    Overrides look like `stages.federate.rounds=3`. One that puts files in the place of synthetic faces,
    `data.private.source=faces`, also does away with what the file says of those, such as how many there are.
    A file may say `extends = "other.toml"`, or name a recipe there, and hold only what is different. It may hold
    `[variants]` of its experiment (`experiment/variants.py`); without naming one it is as it stands.
    """
    path = locate(path)
    raw = _read(path)
    raw = varied(raw, variant, str(path)) if variant is not None else raw
    raw.pop(VARIANTS, None)
    raw = _absolute(raw, folder_of(path))
    for override in sorted(overrides, key=lambda override: not _names_a_source(override.partition("=")[0])):
        _apply(raw, override)
    return parse_experiment(_absolute(raw, Path.cwd()), str(path))


def load_variants(path: str | Path) -> dict[str, Experiment]:
    """Every variant that an experiment file holds, by name."""
    return {name: load_experiment(path, variant=name) for name in _read(locate(path)).get(VARIANTS, {})}


def _read(path: Path, below: frozenset[Path] = frozenset()) -> dict[str, Any]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise absent(path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read as text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: this is not valid TOML: {error}") from error
    if EXTENDS not in raw:
        return raw
    other, chain = locate(str(raw.pop(EXTENDS)), path.parent), below | {path.resolve()}
    if other.resolve() in chain:
        raise ConfigError(f"{path}: {EXTENDS} leads back to {other}")
    base = _absolute(_read(other, chain), folder_of(other))
    base.pop("name", None)  # another experiment may have another name and need not begin anew for it
    whole: dict[str, Any] = merged(base, raw, str(path))
    return whole


def parse_experiment(raw: Mapping[str, Any], origin: str, *, trusted: bool = True) -> Experiment:
    """Check an experiment. One that is not `trusted`, since others wrote it, cannot choose what code is imported."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, Experiment, within=raw)}") from error
    if not trusted:
        refuse_references(experiment, origin)
    try:
        experiment.network.check()
        predecessors(experiment.recipe)
        require_labels(experiment.recipe, experiment.unlabelled)
        _require_public(experiment)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    return experiment


def _require_public(experiment: Experiment) -> None:
    for stage in experiment.recipe:
        if stage.algorithm.needs_public and experiment.data.public is None:
            raise ConfigError(
                f"stage {stage.name}: {stage.algorithm.name} needs public faces; add [data.public] to the experiment"
            )


def refuse_references(experiment: Experiment, origin: str) -> None:
    """No party of a network imports what another one names."""
    for stage in experiment.stages:
        if is_reference(name := stage.algorithm.get("name")):
            raise ConfigError(
                f"{origin}: stages.{stage.name}.algorithm.name is {name!r}, which every client would have to import; "
                "for a network, install it with all parties, as an entry point (CONTRIBUTING.md)"
            )


def _stage(section: StageSection) -> Stage:
    options = dict(section)
    algorithm, carry = _algorithm(section.name, options.pop("algorithm")), options.pop("carry")
    options["selection"] = _selection(section.name, options["selection"])
    options["aggregation"] = _aggregation(section.name, options["aggregation"])
    try:
        return Stage(**options, algorithm=carry.around(algorithm))
    except ValueError as error:
        raise ConfigError(f"stages.{section.name}.carry: {error}") from error


def _algorithm(stage: str, options: Mapping[str, Any]) -> AnyAlgorithm:
    return _chosen(f"stages.{stage}.algorithm", options, AVAILABLE)


def _selection(stage: str, options: Mapping[str, Any]) -> Selection:
    return _chosen(f"stages.{stage}.selection", options, SELECTIONS)


def _aggregation(stage: str, options: Mapping[str, Any]) -> Aggregation:
    """The rule, with what comes before it."""
    place, rest = f"stages.{stage}.aggregation", dict(options)
    before = rest.pop("before", [])
    rule = _chosen(place, rest, AGGREGATIONS)
    if not isinstance(before, list | tuple) or not all(isinstance(each, Mapping) for each in before):
        raise ConfigError(f"{place}.before is a list of tables, each with a name")
    steps = [_chosen(f"{place}.before.{number}", each, PREPARATIONS) for number, each in enumerate(before)]
    return Prepared(rule=rule, before=tuple(steps)) if steps else rule


def _plain(chosen: Any) -> dict[str, Any]:
    """What `_chosen` and `_aggregation` read, written out."""
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


def _apply(raw: dict[str, Any], override: str) -> None:
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
    if _names_a_source(path) and SYNTHETIC in (before := place.get(leaf, SYNTHETIC), value) and before != value:
        place.clear()
    place[leaf] = value


def _names_a_source(path: str) -> bool:
    keys = path.strip().split(".")
    return (keys[0], keys[-1]) == ("data", "source")


def _absolute(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
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
