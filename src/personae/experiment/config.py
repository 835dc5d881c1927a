"""The schema of an experiment file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from personae.core.registry import references
from personae.core.stage import Recipe, predecessors
from personae.data import PartitionPlan
from personae.data.handling import Handling
from personae.errors import ConfigError
from personae.evaluation.personalized import AmongEverybody
from personae.experiment.explain import explain
from personae.experiment.forgotten import Forgotten, forgotten_in
from personae.experiment.labels import Unlabelled, require_labels, unlabelled_sides
from personae.experiment.reading import read_experiment, variants_in
from personae.experiment.retention import Retention
from personae.experiment.section import Section
from personae.experiment.sources import Data, Source
from personae.experiment.stages import StageSection
from personae.models import Network
from personae.privacy.accountant import Budget
from personae.runtime.firewall import Firewall


class Evaluation(Section):
    """How models are evaluated."""

    fars: tuple[float, ...] = (1e-1, 1e-2, 1e-3)  # false accept rates at the server's benchmarks
    client_fars: tuple[float, ...] = (1e-1, 1e-2)  # and on each client's own faces
    folds: int = Field(default=10, ge=2)  # of the verification accuracy; each gets the threshold of the others
    pairs_per_fold: int = Field(default=600, ge=2)  # half of them of one person
    mirror: bool = True  # add the vector of the mirror image
    personalized: AmongEverybody | None = None  # each client's people among everybody's test images
    personal_benchmarks: bool = False  # personal models on the held-out people, too; in a simulation

    @model_validator(mode="after")
    def _rates(self) -> Self:
        for rate in (*self.fars, *self.client_fars):
            if not 0 < rate <= 1:
                raise ValueError(f"a false accept rate of {rate} is not in (0, 1]")
        return self


class Tracking(Section):
    """Where figures go besides the run's own folder. It changes no result and is no part of what a run records."""

    trackers: tuple[str, ...] = ()  # tensorboard, mlflow, trackio, or one of another package


class AuditSection(Section):
    """What is measured of a run's privacy when it ends, and kept for that. It changes no result."""

    attacks: tuple[str, ...] = ()  # by name, as in `personae audit --attack`; "all" for every one
    rounds: tuple[int, ...] = ()  # keep what the server receives in these rounds of each stage; -1 is the last

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if 0 in self.rounds:
            raise ValueError("rounds are counted from 1, and from -1 backwards")
        return self


class KeptCheckpoints(Section):
    """Which states of a run stay on disk besides the last two and those at the end of each stage."""

    every: int = Field(default=0, ge=0)  # the state after every so many rounds, and what clients kept then; 0 for none


class Experiment(Section):
    """Everything that determines a result."""

    name: str = Field(min_length=1)  # of the experiment; the run goes to runs/NAME
    seed: int = Field(default=0, ge=0)  # the same seed gives the same bits on a CPU
    # A file to start from instead of random weights. Settings that stages leave out are then those for a strong start.
    weights: str | None = None
    threads: int = Field(
        default=1, ge=1, le=1024
    )  # of the server's own work; the result depends on it in the last bits
    data: Data = Data()
    partition: PartitionPlan = Field(default_factory=PartitionPlan)
    network: Network = Field(default_factory=Network)
    stages: tuple[StageSection, ...]
    evaluation: Evaluation = Evaluation()
    firewall: Firewall = Field(default_factory=Firewall)
    budget: Budget = Field(default_factory=Budget)
    tracking: Tracking = Tracking()  # where figures go besides the run's own folder
    retention: Retention = Retention()  # how long its run keeps what
    checkpoints: KeptCheckpoints = KeptCheckpoints()  # which states stay, so that it need not go back to the beginning
    forgotten: tuple[Forgotten, ...] = ()  # who is left out; `personae forget` writes it into a run
    audit: AuditSection = AuditSection()  # what is measured of the run's privacy

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        """Whoever wrote the experiment does not choose where on this machine its run goes."""
        if name.startswith(".") or not name.isprintable() or {"/", "\\"} & {*name} or len(name) > 200:
            raise ValueError("a run goes to runs/NAME: give a plain name, without / and no longer than 200 characters")
        return name

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
        return tuple(section.built() for section in self._sections)

    @property
    def _sections(self) -> tuple[StageSection, ...]:
        """The stages, which take other defaults if they go on from weights."""
        return tuple(section.from_strong_start() for section in self.stages) if self.weights else self.stages

    @property
    def unlabelled(self) -> Unlabelled:
        """The sides on which clients have no labels; of clients elsewhere, nothing is known."""
        sources = self.data.private.all_parts() if self.data.private else {}
        parts = {name: part.unlabelled for name, part in sources.items()}
        return unlabelled_sides(parts, self.partition)

    def resolved(self) -> dict[str, Any]:
        """Every value that a result depends on, given or by default, as plain data."""
        unset = {name for name in ("forgotten", "checkpoints") if name not in self.model_dump(exclude_defaults=True)}
        left_out = {"tracking", "retention", "audit"} | unset  # what says nothing is in no config.json
        plain: dict[str, Any] = json.loads(self.model_dump_json(exclude=left_out))
        for section, given in zip(plain["stages"], self._sections, strict=True):
            section |= given.resolved()
        return plain


def still_without(experiment: Experiment, run: Path) -> Experiment:
    """The experiment without those whom its run was made to forget: that holds whenever the run is resumed."""
    gone = forgotten_in(run)
    return experiment if experiment.forgotten or not gone else experiment.model_copy(update={"forgotten": gone})


def load_experiment(path: str | Path, overrides: Sequence[str] = (), variant: str | None = None) -> Experiment:
    """Read an experiment file, or the recipe of this name, and check it (`experiment/reading.py`)."""
    return parse_experiment(*read_experiment(path, overrides, variant))


def load_variants(path: str | Path) -> dict[str, Experiment]:
    """Every variant that an experiment file holds, by name."""
    return {name: load_experiment(path, variant=name) for name in variants_in(path)}


def parse_experiment(raw: Mapping[str, Any], origin: str, *, trusted: bool = True) -> Experiment:
    """Check an experiment. One that is not `trusted`, since others wrote it, cannot choose what code is imported."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, Experiment, within=raw)}") from error
    except ConfigError as error:  # sections that say so themselves
        raise ConfigError(f"{origin}: {error}") from error
    if not trusted:
        refuse_references(experiment, origin)
    try:
        experiment.network.check()
        predecessors(experiment.recipe)
        require_labels(experiment.recipe, experiment.unlabelled)
        _require_public(experiment)
        _require_visible_updates(experiment)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    return experiment


def _require_public(experiment: Experiment) -> None:
    for stage in experiment.recipe:
        if stage.algorithm.needs_public and experiment.data.public is None:
            raise ConfigError(
                f"stage {stage.name}: {stage.algorithm.name} needs public faces; add [data.public] to the experiment"
            )


def _require_visible_updates(experiment: Experiment) -> None:
    """That nobody counts on checks of single updates where the server sees none."""
    wanted = [name for name, value in asdict(experiment.firewall).items() if value != getattr(Firewall, name)]
    checks = [name for name in wanted if name != "enabled"]
    for stage in experiment.recipe if checks else ():
        for layer in stage.layers:
            if layer.hides_single_updates:
                raise ConfigError(
                    f"stage {stage.name}: firewall.{checks[0]} checks single updates, which layer {layer.name} hides "
                    "from the server; leave it out, and bound updates at the clients with the layer clip"
                )


def refuse_references(experiment: Experiment, origin: str) -> None:
    """No party of a network imports what another one names."""
    for stage in experiment.stages:
        for place, name in references(asdict(stage), f"stages.{stage.name}"):
            raise ConfigError(
                f"{origin}: {place} is {name!r}, which every client would have to import; "
                "for a network, install it with all parties, as an entry point (docs/extending.md)"
            )
