"""Rounds of an earlier run that another one takes over instead of training them again."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from personae.core.events import (
    Event,
    GlobalEvaluation,
    PersonalEvaluation,
    RoundTime,
    RoundWarning,
    TrainingRound,
    Transfer,
)
from personae.core.message import ServerState
from personae.core.stage import Stage
from personae.runtime.checkpoint import Checkpoints, Position
from personae.runtime.knowledge import unlearnt

EventT = TypeVar("EventT", bound=Event)
OF_NO_CLIENT = frozenset({"scalars", "metrics"})  # fields of events whose keys are names of figures
_EVALUATIONS = (GlobalEvaluation, PersonalEvaluation)


@dataclass(frozen=True, kw_only=True)
class Past:
    """What is taken over of an earlier run: states and records of training. All that was evaluated is evaluated again.

    Nothing of the client that is `forgotten` is taken over. If it took part in these rounds, what it has put into
    averages stays there.
    """

    rounds: Mapping[str, int]  # by stage: how many of its rounds, the first ones
    checkpoints: Checkpoints  # of the earlier run
    records: Sequence[Event | Transfer | RoundTime]  # of the earlier run, in the order in which they were written
    private: Path | None = None  # where its clients kept what never left them
    forgotten: str | None = None
    index: int | None = None  # of that client

    def of(self, stage: Stage, round_: int) -> Iterator[Event | Transfer | RoundTime]:
        """What was written down of the training in this round."""
        mine = self._by_round.get((stage.name, round_), [])
        asked: tuple[str, ...] = ()
        for entry in mine:
            if isinstance(entry, Event) and not (isinstance(entry, _EVALUATIONS) or self._names(entry)):
                event = entry if self.forgotten is None else without_client(entry, self.forgotten)
                asked = event.participants if isinstance(event, TrainingRound) else asked
                yield event
        yield from _of_training(entry for entry in mine if isinstance(entry, Transfer) and entry.client in asked)
        yield from (entry for entry in mine if isinstance(entry, RoundTime))

    def state(self, stage: Stage, round_: int) -> tuple[Position, ServerState] | None:
        """What the server had after this round, if that was kept."""
        found = self.checkpoints.after(stage.name, round_)
        if found is None or self.forgotten is None:
            return found
        position, state = found
        return position, unlearnt(stage.algorithm.forget(state, self.forgotten), self.index)

    def _names(self, event: Event) -> bool:
        """Whether it is a warning about the client that is forgotten."""
        return self.forgotten is not None and isinstance(event, RoundWarning) and self.forgotten in event.text

    @cached_property
    def _by_round(self) -> dict[tuple[str, int], list[Event | Transfer | RoundTime]]:
        found = defaultdict[tuple[str, int], list[Event | Transfer | RoundTime]](list)
        for entry in self.records:
            found[entry.stage, entry.round].append(entry)
        return found


def without_client(event: EventT, client: str) -> EventT:
    """The event without what it says of a client by its name."""
    said = {each.name: getattr(event, each.name) for each in fields(event)}
    kept: dict[str, Any] = {}
    for name, value in said.items():
        if isinstance(value, Mapping) and client in value and name not in OF_NO_CLIENT:
            kept[name] = {other: each for other, each in value.items() if other != client}
        elif isinstance(value, tuple) and client in value:
            kept[name] = tuple(other for other in value if other != client)
    return replace(event, **kept)


def _of_training(transfers: Iterable[Transfer]) -> Iterator[Transfer]:
    """Of clients that trained; in an evaluation they get another message after they have answered the first."""
    answered, done = set[str](), set[str]()
    for transfer in transfers:
        if transfer.direction == "up":
            answered.add(transfer.client)
        elif transfer.client in answered:
            done.add(transfer.client)
        if transfer.client not in done:
            yield transfer
