"""Verdicts while runs are still going on: a claim is judged as soon as the last of its runs has ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.errors import ConfigError
from personae.experiment.config import Experiment
from personae.reproduce.claims import Claim
from personae.reproduce.findings import Finding, find
from personae.reproduce.pages import write_findings
from personae.reproduce.quantities import Outcome, Outcomes
from personae.reproduce.records import keep_figures, keep_run
from personae.words import counted


@dataclass
class Judge:
    """Judges every claim when the last of its runs has ended, tells the verdict and writes it down.

    Whoever stops early keeps what was decided until then.
    """

    claims: Sequence[Claim]
    about: Mapping[str, Any]
    out: Path
    experiments: Mapping[str, Experiment]
    folders: Mapping[int, Mapping[str, str]]  # of the runs by seed and variant
    cache: Path | None
    notify: Callable[[str], None]
    ended: set[str] = field(default_factory=set)  # folders of runs
    failed: dict[str, str] = field(default_factory=dict)  # those that diverged, and why
    known: dict[tuple[int, str], float] = field(default_factory=dict)  # figures computed from models
    findings: dict[str, Finding] = field(default_factory=dict)  # by the claim's id
    _opened: dict[tuple[int, str], Outcome] = field(default_factory=dict)

    @property
    def in_order(self) -> tuple[Finding, ...]:
        return tuple(self.findings[claim.id] for claim in self.claims if claim.id in self.findings)

    @property
    def outcomes(self) -> dict[int, Outcomes]:
        """The runs that have come to their end, by seed and variant."""
        return {
            seed: {
                name: self._outcome(seed, name)
                for name, folder in of_seed.items()
                if folder in self.ended and folder not in self.failed
            }
            for seed, of_seed in self.folders.items()
        }

    def _outcome(self, seed: int, name: str) -> Outcome:
        """Always the same one, so that what was read of it is not read again."""
        if (seed, name) not in self._opened:
            experiment = self.experiments[name].model_copy(update={"seed": seed})
            self._opened[seed, name] = Outcome(experiment, self.out / "runs" / self.folders[seed][name], self.cache)
        return self._opened[seed, name]

    def hear(self, folder: str, problem: str | None) -> None:
        """A run has ended."""
        keep_run(self.out, folder, problem)
        self.ended.add(folder)
        if problem is not None:
            self.failed[folder] = problem
        self.judge()

    def judge(self) -> None:
        """Judge what can be judged by now and was not before."""
        ready = [claim for claim in self.claims if claim.id not in self.findings and not self.missing(claim)]
        if not ready:
            return
        before, outcomes = {*self.known}, self.outcomes
        for claim in ready:
            finding = self.findings[claim.id] = find(claim, outcomes, self.known)
            self.notify(f"{claim.id} {finding.verdict}: {claim.sentence}")
        keep_figures(self.out, {place: value for place, value in self.known.items() if place not in before})
        self.write()

    def missing(self, claim: Claim) -> list[str]:
        """The runs that it waits for."""
        needed = {of_seed[name] for of_seed in self.folders.values() for name in claim.variants}
        return sorted(needed - self.ended - {*self.failed})

    def require_any(self) -> None:
        """Say which claims cannot be judged, if no more runs will come; there must be one that can."""
        for claim in self.claims:
            if missing := self.missing(claim):
                told = f"{counted(len(missing), 'run')} not in the records, such as {missing[0]}"
                self.notify(f"{claim.id} is left out: {told}")
        if all(map(self.missing, self.claims)):
            raise ConfigError("the records have not all runs of any claim with these seeds; ask for fewer --seeds")

    def write(self, pictures: Sequence[Path] = ()) -> None:
        write_findings(self.in_order, self.about, self.out, pictures)
