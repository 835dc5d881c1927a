"""Warnings about the figures of a round: they are told and recorded, and stop nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

RISE = 2.0  # a training loss that so many times over exceeds that of the round before is worth a warning


@dataclass(frozen=True)
class Figures:
    """What was reported in a round (`Scalars` of clients, `ServerState.figures` where the server works alone)."""

    now: Mapping[str, float]  # means over the clients
    # In the round before. Empty in a stage's first round, and where less than half of the clients are asked.
    before: Mapping[str, float] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by client


def rising_loss(figures: Figures) -> Iterator[str]:
    """The loss of a training that is lost, though its values are still finite."""
    before, now = figures.before.get("loss"), figures.now.get("loss")
    if before is not None and now is not None and 0 < RISE * before < now:
        yield f"the training loss rose from {before:.3g} to {now:.3g} in one round; lower the learning rate"
