"""A run directory, read while the run may still be going on, and condensed to what a report shows."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from personae.core.description import Description
from personae.core.events import (
    EntryT,
    Event,
    GlobalEvaluation,
    PersonalEvaluation,
    PrivacySpent,
    RoundTime,
    RoundWarning,
    Suspicion,
    TrainingRound,
    Transfer,
    entries,
    events,
    ledger,
)
from personae.errors import ConfigError
from personae.evaluation.intervals import Interval
from personae.evaluation.spread import Served, Spread, served, spread
from personae.files import read_json
from personae.privacy.audit.finding import Audit, read_audit
from personae.privacy.forgotten_log import ForgottenEntry, read_log
from personae.privacy.spent import spent

Metrics = Mapping[str, float]
POPULATIONS = "heldout/populations"  # the benchmark of the held-out people of several domains
CLUSTERS = "clusters/"  # begins the names of figures of clusters, as clients send them


@dataclass(frozen=True)
class StageRecord:
    """One stage as the summary describes it: how many rounds it is to have, and what may leave the clients.

    None stands for what is not known, because there is no summary yet.
    """

    name: str
    label: str
    algorithm: str = ""
    rounds: int | None = None
    discloses: tuple[str, ...] | None = None
    pools_faces: bool = False
    federated: bool = False
    after: str | None = None
    """The stage it continues from; None for the start of the run."""


@dataclass(frozen=True)
class Size:
    """How many people of a population were compared, in how many pairs."""

    people: int
    genuine_pairs: int
    impostor_pairs: int


@dataclass(frozen=True)
class Populations:
    """How evenly a model serves several populations: figures of each, and of all together."""

    groups: Mapping[str, Metrics]
    group_sizes: Mapping[str, Size]
    metrics: Metrics
    intervals: Mapping[str, Interval]
    """As `population/metric`, where there are any."""

    def __post_init__(self) -> None:
        if self.groups.keys() != self.group_sizes.keys():
            raise ValueError("figures and sizes are not of the same groups")


@dataclass
class Record:
    """What happened in one stage, by round."""

    loss: dict[int, float] = field(default_factory=dict)
    fractions: dict[str, float] = field(default_factory=dict)
    """What clients said of their work in the latest round, by names such as `pseudo-labels/f_score`."""
    clusters: dict[str, dict[str, Metrics]] = field(default_factory=dict)
    """Figures of clusters by kind of images (training, test) and client: the latest, of faces without labels."""
    benchmarks: dict[int, Metrics] = field(default_factory=dict)
    clients: dict[int, Mapping[str, Spread]] = field(default_factory=dict)
    first_clients: Mapping[str, Metrics] = field(default_factory=dict)
    """Of the model that the stage began with; `last_clients` is of the last evaluation after that."""
    last_clients: Mapping[str, Metrics] = field(default_factory=dict)
    new_clients: frozenset[str] = frozenset()
    """Those of them that took no part in training."""
    absences: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often a client was (rejected or failed) for a reason: (what, client, reason)."""
    asked: Counter[str] = field(default_factory=Counter)
    """By client, in how many rounds it was to train."""
    visits: Counter[int] = field(default_factory=Counter)
    """By round, how many clients were to train."""
    before: "tuple[Record, ...]" = ()
    """Of the stages that it continues from, directly or not."""
    suspicions: dict[int, Suspicion] = field(default_factory=dict)
    """By round, who was suspected, left out or drawn back."""
    warnings: list[tuple[int, str]] = field(default_factory=list)
    """What the figures of a round gave reason to look at, with that round."""
    seconds: dict[int, float] = field(default_factory=dict)
    traffic: dict[str, Counter[int]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})
    """Bytes by direction and round."""
    payloads: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bytes by direction and payload."""
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    payload_rounds: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    payload_clients: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    evaluation: Mapping[str, Any] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Of the first stage, the evaluation in full of the weights that the run was given."""
    populations: Populations | None = None
    """Of the final evaluation; `given_populations` is of the weights that the run was given."""
    given_populations: Populations | None = None
    last_round: int = 0

    def served(self, *, new: bool) -> dict[str, Served]:
        """How evenly clients are served by metric: those that trained, or those that only joined later."""
        return served({name: each for name, each in self.last_clients.items() if (name in self.new_clients) == new})

    @property
    def final_metrics(self) -> Metrics:
        """Of the final evaluation, or the latest known while there is none."""
        if self.evaluation is None:
            latest = max(self.benchmarks, default=0)
            return self.benchmarks[latest] if latest else {}
        return {
            f"{benchmark}/{name}": value
            for benchmark, result in self.evaluation.items()
            for name, value in result["metrics"].items()
        }


@dataclass(frozen=True)
class Run:
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    stages: tuple[StageRecord, ...]
    records: Mapping[str, Record]
    missing: tuple[str, ...]
    payloads: Mapping[str, Description] = field(default_factory=dict)
    """The kinds that may cross in it, as it described them when it began."""
    audit: Audit | None = None
    """What attacks on its privacy found; None where none was made."""
    forgotten: tuple[ForgottenEntry, ...] = ()
    spent: tuple[PrivacySpent, ...] = ()
    """What differential privacy can say of it; nothing where no layer adds noise."""

    def described(self, payload: str) -> Description:
        """A kind in words; one that nobody has described goes by its name."""
        if payload in self.payloads:
            return self.payloads[payload]
        from personae.core.payload import known_kinds  # takes seconds, and runs of this version need none

        kind = known_kinds().get(payload)
        return kind.description() if kind else Description("", payload, is_template=False, is_figure=False)

    @property
    def name(self) -> str:
        return str(self.config.get("name", "run"))

    @property
    def sent(self) -> Counter[str]:
        """Bytes that clients have sent to the server, by kind of payload."""
        kinds: Counter[str] = Counter()
        for record in self.records.values():
            for (way, payload), count in record.payloads.items():
                if way == "up":
                    kinds[payload] += count
        return kinds

    def has_shared_model(self, stage: StageRecord) -> bool:
        """Whether clients send more than figures in it; where they do not, the shared model is that from before."""
        if not stage.federated or stage.discloses is None:
            return True
        return not all(self.described(payload).is_figure for payload in stage.discloses)

    @property
    def unfinished(self) -> tuple[StageRecord, ...]:
        return tuple(stage for stage in self.stages if self.records[stage.name].evaluation is None)


def rate_of(metric: str) -> float | None:
    """The rate of false accepts at which it was measured, as in `tar@1e-02`; None where it names none."""
    try:
        rate = float(metric.rpartition("@")[2]) if "@" in metric else 0.0
    except ValueError:  # of somebody's own figure, or of a damaged file
        return None
    return rate if 0 < rate < math.inf else None


def is_networked(run: Run) -> bool:
    """Whether clients on other machines had the faces, and have what they keep."""
    return bool(run.environment.get("transport") == "flower")


@dataclass(frozen=True)
class Figure:
    """One figure of a run: what clients said of their training (`loss`), or how a model did.

    Without a client it is of all who trained, or of the server's benchmarks; with one, of this client's own faces.
    """

    stage: str
    round: int
    client: str | None
    metric: str
    value: float


def read_events(folder: Path) -> list[Event]:
    """Everything that a run wrote down about its rounds, in that order."""
    path = folder / "metrics.jsonl"
    with _opened(path) as lines:
        return list(events(lines, path))


def read_figures(folder: Path) -> list[Figure]:
    """Every figure of a run, in the order in which they were written down."""
    return [figure for event in read_events(folder) for figure in figures_of(event)]


def figures_of(event: Event) -> list[Figure]:
    metrics: Mapping[str | None, Metrics]
    match event:
        case TrainingRound():
            metrics = {None: event.scalars}
        case GlobalEvaluation():
            metrics = {None: event.metrics}
        case PersonalEvaluation():
            metrics = dict(event.clients.items())
        case _:
            metrics = {}
    return [
        Figure(event.stage, event.round, client, name, value)
        for client, of_client in metrics.items()
        for name, value in of_client.items()
    ]


def read_run(folder: Path) -> Run:
    if not (folder / "config.json").is_file():
        why = "has no config.json, so it is not a run" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{folder}: {why}; give the folder of a run, such as runs/quick")
    records: dict[str, Record] = defaultdict(Record)
    told = read_events(folder)
    for event in told:
        _add_event(records[event.stage], event)
    for time in _entries(RoundTime, folder):
        records[time.stage].seconds[time.round] = time.seconds
    ledger_file = folder / "ledger.jsonl"
    with _opened(ledger_file) as lines:
        for entry in ledger(lines, ledger_file):
            if isinstance(entry, Transfer):
                _add_transfer(records[entry.stage], entry)
    for path in sorted((folder / "evaluation").glob("*.json")):
        read_json(path, lambda final: _add_evaluation(records[final["stage"]], final))
    for path in sorted((folder / "evaluation" / "given").glob("*.json")):
        read_json(path, lambda given: _add_given(records[given["stage"]], given))
    summary = folder / "summary.json"
    described = read_json(summary, _stages) if summary.is_file() else ()
    known = {stage.name for stage in described}
    stages = (*described, *(StageRecord(name, name) for name in records if name not in known))
    for stage in stages:  # each after those that it continues from
        if stage.after is not None:
            records[stage.name].before = (*records[stage.after].before, records[stage.after])
    environment = read_json(folder / "environment.json", dict) if (folder / "environment.json").is_file() else {}
    optional = ("environment.json", "summary.json", "metrics.jsonl", "timing.jsonl", "ledger.jsonl", "evaluation")
    return Run(
        config=read_json(folder / "config.json", _config),
        environment=environment,
        stages=stages,
        records={stage.name: records[stage.name] for stage in stages},
        missing=tuple(name for name in optional if not (folder / name).exists()),
        payloads=read_json(summary, _payloads) if summary.is_file() else {},
        audit=read_audit(folder),
        spent=tuple(spent(told)),
        forgotten=read_log(folder),
    )


def _entries(kind: type[EntryT], folder: Path) -> Iterator[EntryT]:
    path = folder / f"{kind.record}.jsonl"
    with _opened(path) as lines:
        yield from entries(kind, lines, path)


def _opened(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    """The lines of a record, of which there are none before the run writes the first."""
    return path.open("rb") if path.is_file() else nullcontext(())


def _add_event(record: Record, event: Event) -> None:
    record.last_round = max(record.last_round, event.round)
    match event:
        case TrainingRound():
            if "loss" in event.scalars:
                record.loss[event.round] = event.scalars["loss"]
            record.fractions = {
                name: value for name, value in event.scalars.items() if "/" in name and not name.startswith(CLUSTERS)
            }
            _add_clusters(record, "training", CLUSTERS, event.clients)
            record.asked.update(event.participants)
            record.visits[event.round] = len(event.participants)
            for what, reasons in (("rejected", event.rejected), ("failed", event.failed)):
                record.absences.update((what, client, reason) for client, reason in reasons.items())
        case GlobalEvaluation():
            record.benchmarks[event.round] = event.metrics
        case PersonalEvaluation():
            # All clients of all rounds would be too much to keep: their spread, and the clients of the last round.
            figures = {
                client: {name: value for name, value in metrics.items() if f"/{CLUSTERS}" not in name}
                for client, metrics in event.clients.items()
            }
            record.clients[event.round] = spread(figures)
            if not event.round:  # they are not yet of this stage
                record.first_clients = figures
            else:
                record.last_clients = figures
                record.new_clients = frozenset(event.new)
                for images, model in (("test", "global"), ("test, personal", "personal")):
                    _add_clusters(record, images, f"{model}/{CLUSTERS}", event.clients)
                if record.clusters.get("test") == record.clusters.get("test, personal"):
                    record.clusters.pop("test, personal", None)  # nobody has a model of its own
        case Suspicion():
            record.suspicions[event.round] = event
        case RoundWarning():
            record.warnings.append((event.round, event.text))


def _add_clusters(record: Record, images: str, prefix: str, clients: Mapping[str, Metrics]) -> None:
    for client, metrics in clients.items():
        found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        if found:
            record.clusters.setdefault(images, {})[client] = found


def _add_transfer(record: Record, transfer: Transfer) -> None:
    record.traffic[transfer.direction][transfer.round] += transfer.bytes
    record.payloads[transfer.direction, transfer.payload] += transfer.bytes
    record.messages[transfer.direction, transfer.payload] += 1
    record.payload_rounds[transfer.direction, transfer.payload].add(transfer.round)
    record.payload_clients[transfer.direction, transfer.payload].add(transfer.client)


def _add_evaluation(record: Record, final: Mapping[str, Any]) -> None:
    record.evaluation, record.populations = _evaluation(final)


def _add_given(record: Record, given: Mapping[str, Any]) -> None:
    record.given, record.given_populations = _evaluation(given)


def _evaluation(final: Mapping[str, Any]) -> tuple[Mapping[str, Any], Populations | None]:
    """What was found on each benchmark, and apart from these on the populations."""
    benchmarks = dict(final["benchmarks"])
    populations = benchmarks.pop(POPULATIONS, None)
    for name, result in benchmarks.items():  # checked here, so that a malformed file is reported by its name
        roc, histogram = result["roc"], result["histogram"]
        bins = len(_numbers(histogram["edges"])) - 1
        fits = len(_numbers(roc["far"])) == len(_numbers(roc["tar"]))
        if not fits or not bins == len(_numbers(histogram["genuine"])) == len(_numbers(histogram["impostor"])) > 0:
            raise ValueError(f"the curves of {name} do not belong together")
        _numbers([*result["metrics"].values()])
        for values in result.get("resampled", {}).values():
            _numbers(values)
    return benchmarks, None if populations is None else TypeAdapter(Populations).validate_python(populations)


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list) or not all(isinstance(each, int | float) for each in values):
        raise ValueError("there is something else where numbers should be")
    return values


def _config(content: dict[str, Any]) -> dict[str, Any]:
    if not all(isinstance(stage["name"], str) for stage in content.get("stages", ())):
        raise ValueError("a stage has no name")
    return content


def _payloads(summary: Mapping[str, Any]) -> dict[str, Description]:
    return TypeAdapter(dict[str, Description]).validate_python(summary.get("payloads", {}))


def _stages(summary: Mapping[str, Any]) -> tuple[StageRecord, ...]:
    stages = tuple(
        StageRecord(
            name=str(stage["name"]),
            label=str(stage.get("label") or stage["name"]),
            algorithm=str(stage.get("algorithm", "")),
            rounds=stage.get("rounds"),
            discloses=tuple(map(str, stage["discloses"])) if "discloses" in stage else None,
            pools_faces=bool(stage.get("pools_faces", False)),
            federated=bool(stage.get("federated", False)),
            after=stage.get("after"),
        )
        for stage in summary["stages"]
    )
    earlier: set[str | None] = {None}
    for stage in stages:
        if stage.after not in earlier:
            raise ValueError(f"there is no stage {str(stage.after)!r} to go on from")
        earlier.add(stage.name)
    return stages
