"""What a server has decided about a run, on disk beside it."""

import json
import math
import uuid
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from personae.core.layout import Layout
from personae.deployment.job import Job
from personae.errors import ConfigError, DataError
from personae.experiment.config import Experiment, refuse_references
from personae.experiment.shared_secret import require_digests
from personae.files import from_json, read_json, write_bytes
from personae.words import counted

PLAN = "deployment.json"
NOTICES = "notices.log"  # of a run over a network: what there is to say, and how it ended
OUTCOME = "outcome.json"
WORKING = "working.lock"  # held by the process that is at it
SERVING = "serving.lock"  # and by the one that starts it, again and again
POST = "post"  # a folder: requests and answers that wait for somebody
DEADLINE = 600.0
WAIT = 3600.0
MAX_BYTES = 1 << 30
CLASSES = 64 << 20  # bytes of an answer that are no model: class embeddings of 32,000 people, say
MODELS = 4  # float32 vectors of the size of a model that an answer may hold, with what clients carry


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How long a server waits, and how things travel."""

    deadline: float = DEADLINE  # seconds that clients have to answer
    wait: float = WAIT  # seconds for all clients to connect, before the run goes on with those that have
    coding: str = "exact"
    max_bytes: int = MAX_BYTES  # what one answer may hold
    device: str = "cpu"  # of the server's own work
    trackers: tuple[str, ...] = ()  # where the server's figures go besides the run's folder

    def __post_init__(self) -> None:
        if not (0 < self.deadline < math.inf and 0 <= self.wait < math.inf) or self.max_bytes < 1:
            raise ConfigError("deadline must be positive, wait not negative, both finite, and max_bytes positive")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run over a network: who takes part, in which order, and under which conditions."""

    clients: tuple[str, ...]
    job: Job
    conditions: Conditions

    @classmethod
    def new(cls, experiment: Experiment, clients: Sequence[str], conditions: Conditions) -> Self:
        _check(experiment, clients)
        job = Job.of(uuid.uuid4().hex, experiment, conditions.coding, conditions.max_bytes, len(clients))
        job.coder()
        return cls(clients=tuple(clients), job=job, conditions=conditions)

    @classmethod
    def is_in(cls, out: Path) -> bool:
        return (out / PLAN).is_file()

    @classmethod
    def read(cls, out: Path) -> Self:
        path = out / PLAN
        try:
            content = from_json(path.read_text())
            return cls(
                clients=tuple(content["clients"]),
                job=Job(**content["job"]),
                conditions=Conditions(
                    **{**content["conditions"], "trackers": tuple(content["conditions"].get("trackers", ()))}
                ),
            )
        except FileNotFoundError as error:
            raise ConfigError(f"{out}: no run over a network was begun here; choose another folder") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: this file is damaged ({error}); restore it, or start again elsewhere") from error

    def resumed(self, clients: Sequence[str], conditions: Conditions, excluded: AbstractSet[str] = frozenset()) -> Self:
        """The same run with the same clients, under conditions that may be others as far as results allow.

        Of `excluded` ones the keys may be gone.
        """
        if {*clients} - excluded != {*self.clients} - excluded:
            raise ConfigError(
                f"this run was begun with the clients {', '.join(self.clients)}; "
                f"now there are keys of {', '.join(clients)}; put a client out with --exclude NAME"
            )
        if conditions.coding != self.conditions.coding:
            raise ConfigError(f"this run was begun with --coding {self.conditions.coding}; go on with that")
        return replace(self, job=replace(self.job, max_bytes=conditions.max_bytes), conditions=conditions)

    def write(self, out: Path) -> None:
        content = {"clients": self.clients, "job": asdict(self.job), "conditions": asdict(self.conditions)}
        text = json.dumps(content, indent=1) + "\n"
        write_bytes(out / PLAN, text.encode(), private=True)  # an experiment may have secrets


def outcome(out: Path) -> dict[str, Any] | None:
    """How the run ended; None while it goes on."""
    path = out / OUTCOME
    if not path.exists():
        return None
    return read_json(path, dict)


def largest_answer(experiment: Experiment) -> int:
    """Bytes that an answer of an honest client has room in."""
    return CLASSES + MODELS * 4 * Layout.of(experiment.network.layout()).size


def newcomers(experiment: Experiment, clients: Sequence[str]) -> frozenset[str]:
    """As in a partition, the last ones."""
    return frozenset(clients[len(clients) - experiment.partition.new_clients :])


def _check(experiment: Experiment, clients: Sequence[str]) -> None:
    refuse_references(experiment, experiment.name)
    require_digests(experiment)
    if experiment.checkpoints.every:
        raise ConfigError(
            "checkpoints.every is for simulations (personae run): over a network, forgetting starts again"
        )
    for stage in experiment.recipe:
        if stage.algorithm.pools_faces:
            raise ConfigError(
                f"stage {stage.name}: {stage.algorithm.name} needs everybody's faces in one place; "
                "it runs in one process only (personae run), so leave the stage out"
            )
        if stage.algorithm.shows_others:
            raise ConfigError(
                f"stage {stage.name}: {stage.algorithm.name} shows every client the class embeddings of all others; "
                "it is for comparisons on one machine (personae run), so leave the stage out"
            )
        if any(layer.mechanism and not layer.mechanism.secret for layer in stage.layers):
            raise ConfigError(
                f"stage {stage.name}: its noise follows from the seed, which every client is sent, so that anybody "
                'could take it away again; set randomness = "secret" in its layer'
            )
        public = experiment.data.public
        if stage.algorithm.federated and stage.algorithm.needs_public and public is not None and public.parts:
            raise ConfigError(
                f"stage {stage.name}: a client has its own copy of the public faces as one set; "
                "give data.public one source instead of parts"
            )
    if experiment.partition.new_clients >= len(clients):
        raise ConfigError(
            f"partition.new_clients is {experiment.partition.new_clients} of {counted(len(clients), 'client')}; "
            "some must train"
        )
    source = experiment.partition.source
    if source and source not in clients:
        raise ConfigError(f"partition.source is {source!r}, and no client has a key of that name")
