"""What a run writes down, one line each: the engine writes these, and reports, trackers and callbacks get them.

`metrics.jsonl` holds events, `ledger.jsonl` transfers and admissions, `timing.jsonl` times. Each class below is one
kind of line: its fields are the keys of that line, in this order. Reading is strict: a damaged line, or one of another
version, is an error that names it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from personae.core.mechanism import Observer, Unit
from personae.errors import DataError

Figures = Mapping[str, float]  # by name
Whole = Annotated[int, Field(ge=0, lt=2**63)]  # a larger one is damage, and no float can hold it
RecordName = Literal["metrics", "ledger", "timing"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of one of the records of a run."""

    record: ClassVar[RecordName]
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def line(self) -> bytes:
        return json.dumps(self.plain()).encode() + b"\n"

    def plain(self) -> dict[str, Any]:
        """As the line says it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Event(Entry):
    """Something that happened in a round; round 0 is the start of a stage."""

    record = "metrics"
    event: str
    stage: str
    round: Whole


@dataclass(frozen=True, kw_only=True)
class TrainingRound(Event):
    """A round of training is complete."""

    event: Literal["round"] = "round"
    participants: tuple[str, ...]  # who was asked
    rejected: Mapping[str, str]  # by client: what the firewall found wrong with its update
    failed: Mapping[str, str]  # by client: why no update came
    scalars: Figures  # means over the accepted clients
    clients: Mapping[str, Figures] = field(default_factory=dict)  # what single clients said and tables show

    def plain(self) -> dict[str, Any]:
        whole = super().plain()
        if not self.clients:
            del whole["clients"]
        return whole


@dataclass(frozen=True, kw_only=True)
class GlobalEvaluation(Event):
    """The server has evaluated the model on its benchmarks."""

    event: Literal["global"] = "global"
    metrics: Figures  # by benchmark/metric


@dataclass(frozen=True, kw_only=True)
class PersonalEvaluation(Event):
    """The clients have evaluated the global model and their own on their own faces."""

    event: Literal["personal"] = "personal"
    clients: Mapping[str, Mapping[str, FiniteFloat]]  # the firewall lets no others pass
    new: tuple[str, ...] = ()  # those of them that take no part in training


@dataclass(frozen=True, kw_only=True)
class Suspicion(Event):
    """The server has drawn back or left out updates, or suspects somebody; rounds without that have none.

    `merged` has figures of the model after the round, and `otherwise` of what it would have been had the server left
    out and drawn back nobody: `step`, how far its weights went, and `separation`, how well it tells rendered faces
    apart (0.5 is chance). `otherwise` is empty if that is the same model, or if there would have been none.
    """

    event: Literal["suspicion"] = "suspicion"
    scores: Figures  # by client, above zero: what its signs of this and earlier rounds add up to
    left_out: Mapping[str, str]  # by client: what it is suspected of
    drawn_back: Mapping[str, Figures]  # by client and quantity: by which factor
    merged: Figures = field(default_factory=dict)
    otherwise: Figures = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundWarning(Event):
    """Something in the figures of a round that a person should look at."""

    event: Literal["warning"] = "warning"
    text: str


@dataclass(frozen=True, kw_only=True)
class PrivacySpent(Event):
    """What differential privacy can say after a round, all rounds and stages so far together.

    Written in runs with a layer that adds noise, for each unit and observer by itself. Where clients have sent what is
    `uncovered`, epsilon is of what is covered, and of no more.
    """

    event: Literal["privacy"] = "privacy"
    epsilon: float
    delta: float
    unit: Unit
    against: Observer
    covers: tuple[str, ...]  # kinds of payload
    uncovered: tuple[str, ...] = ()  # what no noise covers, with the stage
    drawn: bool = False  # whether it is counted on that nobody knows who was asked
    secret: bool  # False: the noise is of the experiment's seed, for a simulation
    noises: int = 0  # of how many clients, at least, the noise is in every sum that is seen; 0: no sums are spoken of
    accountant: Literal["pld", "rdp"]

    @property
    def complete(self) -> bool:
        return not self.uncovered


@dataclass(frozen=True, kw_only=True)
class Transfer(Entry):
    """One payload of one message has crossed."""

    record = "ledger"
    stage: str
    round: Whole
    client: str
    direction: Literal["down", "up"]
    payload: str
    bytes: Whole


@dataclass(frozen=True, kw_only=True)
class Admission(Entry):
    """The operator has put a client out of the run, or let it in again: from this round on."""

    record = "ledger"
    stage: str
    round: Whole
    client: str
    admitted: bool


@dataclass(frozen=True, kw_only=True)
class RoundTime(Entry):
    """How long the training of a round took, without its evaluation."""

    record = "timing"
    stage: str
    round: Whole
    seconds: FiniteFloat


EntryT = TypeVar("EntryT", bound=Entry)


def events(lines: Iterable[bytes], origin: object) -> Iterator[Event]:
    """The events of a `metrics.jsonl`; `origin` is what a complaint calls it."""
    kinds = TrainingRound | GlobalEvaluation | PersonalEvaluation | Suspicion | RoundWarning | PrivacySpent
    return _read(_adapter(Annotated[kinds, Field(discriminator="event")]), lines, origin)


def ledger(lines: Iterable[bytes], origin: object) -> Iterator[Transfer | Admission]:
    return _read(_adapter(Transfer | Admission), lines, origin)


def entries(kind: type[EntryT], lines: Iterable[bytes], origin: object) -> Iterator[EntryT]:
    """The lines of a record that holds one kind alone."""
    return _read(_adapter(kind), lines, origin)  # type: ignore[arg-type] # a class can be hashed


@cache  # to make one takes longer than to read a hundred lines
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(adapter: TypeAdapter[EntryT], lines: Iterable[bytes], origin: object) -> Iterator[EntryT]:
    """A last line without its newline is still being written: it does not count."""
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield adapter.validate_json(line, strict=True)
        except ValidationError as error:
            raise DataError(f"{origin}, line {number}, cannot be read: {_why(error)}") from error


def _why(error: ValidationError) -> str:
    """The first fault, in one phrase."""
    fault = error.errors(include_url=False)[0]
    match fault["type"]:
        case "missing":
            return f"{str(fault['loc'][-1])!r} is missing"
        case "unexpected_keyword_argument":
            return f"{str(fault['loc'][-1])!r} is not known; was it written by another version of personae?"
        case "union_tag_invalid":
            return f"there is no event {fault['ctx']['tag']!r}; was it written by another version of personae?"
        case "union_tag_not_found":
            return "'event' is missing"
        case _:
            return ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
