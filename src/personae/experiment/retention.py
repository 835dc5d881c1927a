"""How long a run keeps what: the schedule in an experiment, and in the folder of its run."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Literal, get_args

from pydantic import field_validator

from personae.errors import ConfigError
from personae.experiment.section import Section
from personae.files import write_text

SCHEDULE = "retention.json"  # in a run's folder
Kind = Literal["checkpoints", "private", "records", "tracking", "audit", "models", "all"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1), "y": timedelta(days=365)}


class Retention(Section):
    """How long a run keeps what, as "90d" (hours h, days d, weeks w, years y). It changes no result."""

    checkpoints: str | None = None  # states of the server, with the class embeddings that clients sent
    private: str | None = None  # what clients kept, in a simulation
    records: str | None = None  # figures and the ledger, by client
    tracking: str | None = None  # what trackers were sent
    audit: str | None = None  # what the server received, where it was recorded for attacks, and what these found
    models: str | None = None  # the shared models
    all: str | None = None  # the folder as a whole

    @field_validator("*")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                duration(value)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return value

    def schedule(self) -> dict[Kind, str]:
        return {kind: value for kind in KINDS if (value := getattr(self, kind)) is not None}


def duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,5})([hdwy])", text)
    if not found:
        raise ConfigError(
            f"{text!r} is not a duration; write a number of hours, days, weeks or years: 12h, 90d, 8w, 2y"
        )
    return int(found[1]) * _UNITS[found[2]]


def write_schedule(run: Path, retention: Retention) -> None:
    if schedule := retention.schedule():
        write_text(run / SCHEDULE, json.dumps(schedule, indent=1) + "\n")
