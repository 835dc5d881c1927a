"""What a client agrees to before it takes part in a run: the server's plan, by its digest."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from personae.core.layer import layers_of
from personae.core.stage import Stage
from personae.deployment.job import Job
from personae.errors import ConfigError, Refused
from personae.experiment.config import Experiment
from personae.experiment.home import now
from personae.files import from_json, write_bytes
from personae.privacy.accountant import Accountant
from personae.privacy.disclosure import descriptions, leaves, seen_by_others, warning
from personae.privacy.spent import in_words as spent_in_words
from personae.progress import Notify, unheard
from personae.words import counted

ACCEPTED = "accepted.json"
ALL = "all"  # instead of a digest: whatever this server plans


def digest_of(job: Job) -> str:
    """Of a run and all that determines what leaves a client in it. The same plan as another run is another digest."""
    told = {"run": job.run, "experiment": job.experiment, "coding": job.coding, "clients": job.clients}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def in_words(job: Job, server: str) -> Iterator[str]:
    """The plan for whoever decides: who runs it, what is done, and what leaves."""
    experiment = job.parsed()
    others = f" with {counted(job.clients, 'client')}" if job.clients else ""
    yield f"the server {server} plans the run {experiment.name} ({job.run[:8]}){others}"
    for stage in experiment.recipe:
        yield from _stage(stage, job.clients)
    yield from _privacy(experiment, job.clients)
    for name, kind in descriptions(stage.algorithm for stage in experiment.recipe).items():
        if any(name in leaves(stage.algorithm) for stage in experiment.recipe):
            yield f"  {name}: {kind.meaning}"
    yield f"digest of this plan: {digest_of(job)}"


def _privacy(experiment: Experiment, clients: int) -> Iterator[str]:
    """What the whole run may tell about this client at most, where anything bounds it."""
    noised = [stage for stage in experiment.recipe if any(layer.mechanism for layer in stage.layers)]
    if not noised:
        yield "differential privacy: none; no epsilon bounds what updates say about the faces here"
        return
    try:
        eligible = dict.fromkeys((stage.name for stage in experiment.recipe), clients)
        accountant = Accountant(experiment.recipe, eligible, experiment.budget, cohorts_known=True)
        for spent in accountant.spent(noised[-1], accountant.affordable(noised[-1])):
            yield f"differential privacy: {spent_in_words(spent)}"
    except ConfigError as error:
        yield f"differential privacy: epsilon is not known here ({error})"


def _stage(stage: Stage, clients: int) -> Iterator[str]:
    algorithm = stage.algorithm
    work = f"stage {stage.name}: {algorithm.name}, {counted(stage.rounds, 'round')}"
    if not algorithm.federated:
        yield f"{work}, at the server alone"
        return
    yield f"{work}; leaves this client: {', '.join(leaves(algorithm))}"
    for layer in layers_of(algorithm):
        settings = ", ".join(f"{name} = {value}" for name, value in asdict(layer).items())  # type: ignore[call-overload]
        yield f"  layer {layer.name}: {settings}"
    if text := warning(algorithm):
        yield f"  {text}"
    eligible = {"all": clients, "source": 1, "targets": clients - 1}[stage.clients] if clients else stage.selection.most
    if eligible and (text := seen_by_others(stage, eligible)):
        yield f"  what clients see of each other: {text}"


@dataclass(frozen=True, kw_only=True)
class Consent:
    """What a client has accepted, in its home; a plan that is not there is asked for."""

    home: Path
    server: str = ""
    accept: frozenset[str] = frozenset()  # digests that somebody accepted beforehand, or ALL
    ask: Callable[[], bool] | None = None  # a person who decides now; None where nobody is there
    notify: Notify = unheard
    shown: set[str] = field(default_factory=set)  # digests of plans that were shown to somebody here

    def given(self, job: Job) -> bool:
        return bool({digest_of(job), ALL} & self.accept) or digest_of(job) in self._remembered()

    def require(self, job: Job) -> None:
        """Show a plan that is new and ask about it; what is accepted is remembered."""
        digest = digest_of(job)
        if digest in self._remembered():
            return
        if digest not in self.shown:
            self.shown.add(digest)
            for line in in_words(job, self.server):
                self.notify(line)
        if not self.given(job):
            if self.ask is None:
                raise ConfigError(
                    f"nobody has accepted this plan, and there is no terminal to ask at; to take part, join with "
                    f"--accept {digest}"
                )
            if not self.ask():
                raise Refused(f"the plan {digest} was not accepted; nothing was sent")
        accepted = {**self._remembered(), digest: {"run": job.run, "server": self.server, "when": now()}}
        write_bytes(self._path, (json.dumps(accepted, indent=1) + "\n").encode(), private=True)

    def check(self, job: Job) -> None:
        """That a request is of a plan which was accepted."""
        if not self.given(job):
            raise Refused(f"the server asks for work of the plan {digest_of(job)}, which was not accepted here")

    @property
    def _path(self) -> Path:
        return self.home / ACCEPTED

    def _remembered(self) -> dict[str, dict[str, str]]:
        with suppress(FileNotFoundError):
            try:
                found: dict[str, dict[str, str]] = from_json(self._path.read_text(encoding="utf-8"))
                return found
            except ValueError as error:
                raise ConfigError(
                    f"{self._path}: this file is damaged ({error}); delete it to be asked again"
                ) from error
        return {}


def accepted_of(words: Sequence[str]) -> frozenset[str]:
    """What --accept says."""
    for word in words:
        if word != ALL and not (len(word) == 32 and set(word) <= set("0123456789abcdef")):
            raise ConfigError(
                f"--accept {word}: this is not the digest of a plan; join without --accept to see the plan"
            )
    return frozenset(words)
