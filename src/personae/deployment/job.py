"""What a server tells its clients about a run, besides requests."""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Self

from personae.errors import ConfigError
from personae.experiment.config import Experiment, parse_experiment
from personae.files import from_json
from personae.runtime.coding import Coding, coding_of

RUN = re.compile("[0-9A-Za-z]{1,64}")  # it becomes the name of a folder at the client


@dataclass(frozen=True)
class Job:
    """Travels with every request as text, so that a client can join, leave and come back at any time."""

    run: str  # a name that no other run has: what a client keeps is kept apart by it
    experiment: dict[str, Any]  # as it was written; its places of private faces mean nothing to a client
    coding: str = "exact"
    max_bytes: int = 1 << 30  # what an answer may hold
    clients: int = 0  # how many there are; 0 if that is not told

    @classmethod
    def of(cls, run: str, experiment: Experiment, coding: str, max_bytes: int, clients: int = 0) -> Self:
        return cls(run, json.loads(experiment.model_dump_json(exclude_unset=True)), coding, max_bytes, clients)

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        try:
            job = cls(**from_json(text))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the server describes the run in a way that is not understood ({error})") from error
        if not (isinstance(job.run, str) and RUN.fullmatch(job.run) and isinstance(job.max_bytes, int)):
            raise ConfigError("the server describes the run in a way that is not understood")
        return job

    def text(self) -> str:
        return json.dumps(asdict(self))

    def parsed(self) -> Experiment:
        return parse_experiment(self.experiment, "the server's experiment", trusted=False)

    def coder(self) -> Coding:
        return coding_of(self.coding)
