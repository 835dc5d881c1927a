"""Which runs the variants of one seed need, each once: what several begin with is run for all of them together.

A plan is made of all variants of a recipe, whichever are wanted today, so that a run has its folder whatever was asked
for before it or will be after.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from personae.core.stage import Recipe
from personae.experiment.config import Experiment


@dataclass(frozen=True)
class Job:
    """One run. `begin` is the folder of the run whose end it goes on from."""

    folder: str
    experiment: Experiment
    begin: str | None = None
    stages: int = 0  # of its first stages, how many ran there and are taken over with all that was written down
    followed: bool = True  # whether trackers get its figures

    @property
    def own(self) -> Recipe:
        """The stages that run here."""
        recipe = self.experiment.recipe
        return recipe[self.stages :] if self.begin is None or self.stages else recipe[-1:]


@dataclass
class Plan:
    """The jobs, in an order in which each comes after what it begins with, and the folder of each variant."""

    jobs: list[Job] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)
    _by_result: dict[str, str] = field(default_factory=dict)
    _by_end: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, variants: Mapping[str, Experiment]) -> "Plan":
        plan = cls()
        # Short chains first: where one variant is the beginning of another, that run serves both.
        for name, experiment in sorted(variants.items(), key=lambda item: len(item[1].stages)):
            plan.folders[name] = plan._add(name, experiment)
        plan.folders = {name: plan.folders[name] for name in variants}
        return plan

    def needed(self, variants: Iterable[str]) -> list[Job]:
        """The jobs of these variants and of what they begin with, in order."""
        wanted: set[str | None] = {self.folders[name] for name in variants}
        for job in reversed(self.jobs):
            if job.folder in wanted:
                wanted.add(job.begin)
        return [job for job in self.jobs if job.folder in wanted]

    def _add(self, folder: str, experiment: Experiment) -> str:
        """The folder of the run of this experiment: a new one, unless it is planned already."""
        known = self._by_result.get(_digest(_result_of(experiment)))
        return known or self._job(folder, experiment, self._beginning(experiment))

    def _beginning(self, experiment: Experiment) -> str | None:
        """The folder of a run of all stages but the last."""
        if len(experiment.stages) == 1:
            return None
        before = experiment.model_copy(update={"stages": experiment.stages[:-1]})
        end = _digest(_end_of(before))
        stage = before.stages[-1].name
        return self._by_end.get(end) or self._job(f"{stage}-{end[:8]}", before, self._beginning(before))

    def _job(self, folder: str, experiment: Experiment, begin: str | None) -> str:
        self.jobs.append(Job(folder, experiment, begin))
        self._by_result[_digest(_result_of(experiment))] = folder
        self._by_end.setdefault(_digest(_end_of(experiment)), folder)
        return folder


def _result_of(experiment: Experiment) -> dict[str, Any]:
    """All that its figures depend on."""
    return {key: value for key, value in experiment.resolved().items() if key != "name"}


def _end_of(experiment: Experiment) -> dict[str, Any]:
    """All that the state after its last stage depends on: where no client was ever asked, clients play no part."""
    result = _result_of(experiment)
    if any(stage.algorithm.federated or stage.algorithm.pools_faces for stage in experiment.recipe):
        return result
    whole = {key: result[key] for key in ("seed", "weights", "threads", "network", "stages")}
    return {**whole, "public": result["data"]["public"]}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
