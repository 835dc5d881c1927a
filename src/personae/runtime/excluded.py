"""Clients that the operator has put out of a run or let in again: `excluded.json` in the folder of the run.

The file is a list of decisions, the oldest first. The last one about a client counts:

    [{"client": "bob", "excluded": true, "time": "2026-01-31T12:00:00+00:00", "reason": "sends noise"}]

The engine looks at it before every round, so that a decision holds from the next round on, also of a run that is going
on. A client that is out is neither trained with nor evaluated, and the server forgets what it keeps of it by name. One
that comes back begins like any other that was away. The ledger says from which round on (`core.events.Admission`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter, ValidationError

from personae.errors import ConfigError, DataError
from personae.files import write_bytes

EXCLUDED = "excluded.json"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One client is put out of the run, or let in again."""

    client: str
    excluded: bool
    time: str  # by the clock of the operator's machine
    reason: str = ""
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


_DECISIONS = TypeAdapter(tuple[Decision, ...])


def require_clients(names: Iterable[str], clients: Collection[str]) -> None:
    """That these are clients of the run."""
    for name in names:
        if name not in clients:
            raise ConfigError(f"there is no client {name!r} in this run; there are {', '.join(clients)}")


@dataclass(frozen=True)
class Exclusions:
    """The decisions about the clients of one run."""

    path: Path

    @classmethod
    def of(cls, run: Path) -> Self:
        return cls(run / EXCLUDED)

    def decisions(self) -> tuple[Decision, ...]:
        """All of them, the oldest first."""
        try:
            return _DECISIONS.validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as error:
            raise DataError(f"{self.path}: this file cannot be read; restore it, or remove it to let all in") from error

    def names(self) -> frozenset[str]:
        """Who is out now."""
        return frozenset(
            name for name, last in {each.client: each for each in self.decisions()}.items() if last.excluded
        )

    def take_over(self, other: Self, gone: Collection[str]) -> None:
        """The decisions of another run, but for those about clients that are gone."""
        if kept := tuple(each for each in other.decisions() if each.client not in gone):
            write_bytes(self.path, _DECISIONS.dump_json(kept, indent=1) + b"\n", private=True)

    def decide(
        self,
        *,
        exclude: Collection[str] = (),
        include: Collection[str] = (),
        clients: Collection[str],
        reason: str = "",
    ) -> list[Decision]:
        """Put these out and let those in, of the `clients` of the run; gives what that changes, which is kept."""
        require_clients((*exclude, *include), clients)
        if both := sorted({*exclude} & {*include}):
            raise ConfigError(f"{both[0]} cannot be put out and let in at the same time")
        out, time = self.names(), datetime.now(UTC).isoformat(timespec="seconds")
        if not {*clients} - (out - {*include} | {*exclude}):
            raise ConfigError("nobody would be left in this run; let some of its clients take part")
        changes = [
            Decision(client=name, excluded=True, time=time, reason=reason) for name in exclude if name not in out
        ]
        changes += [Decision(client=name, excluded=False, time=time, reason=reason) for name in include if name in out]
        if changes:
            whole = (*self.decisions(), *changes)
            write_bytes(self.path, _DECISIONS.dump_json(whole, indent=1) + b"\n", private=True)
        return changes
