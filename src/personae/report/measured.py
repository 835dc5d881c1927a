"""Figures with what they can be paired by, so that a difference between two models has an interval.

Rates of the server's benchmarks come with their values in resamples of the identities, the same for every model.
Figures of clients are paired by client. Clients are few, and a bootstrap of five is too sure of itself: their interval
is Student's, which agrees with the bootstrap where clients are many.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from personae.evaluation.intervals import LEVEL, Interval, interval


@dataclass(frozen=True)
class Measured:
    """A figure: its value, in every resample of the identities, and of every client, where these are known."""

    value: float
    resampled: tuple[float, ...] = ()
    clients: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def over_clients(cls, clients: Mapping[str, float]) -> "Measured":
        return cls(math.fsum(clients.values()) / len(clients), clients=dict(clients))

    @classmethod
    def mean(cls, figures: Sequence["Measured"]) -> "Measured":
        """Of several benchmarks, each with people of its own."""
        drawn = [each.resampled for each in figures]
        together = tuple(map(float, np.mean(drawn, axis=0))) if len({len(each) for each in drawn}) == 1 else ()
        common = set.intersection(*(set(each.clients) for each in figures))
        clients = {name: math.fsum(each.clients[name] for each in figures) / len(figures) for name in sorted(common)}
        return cls(math.fsum(each.value for each in figures) / len(figures), together, clients)

    @property
    def interval(self) -> Interval | None:
        if self.resampled:
            return interval(self.resampled, LEVEL)
        return _of_mean(list(self.clients.values()))

    @property
    def worst(self) -> float | None:
        """Of the clients."""
        return min(self.clients.values(), default=None)


@dataclass(frozen=True)
class Difference:
    """How much higher one figure is than another, and the 95% interval of that; None where it cannot be told."""

    value: float
    interval: Interval | None

    @property
    def beyond_noise(self) -> bool:
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)

    @property
    def points(self) -> str:
        """In percentage points, with the sign."""
        if math.isnan(self.value):
            return "not known"
        return f"{100 * self.value:+.1f}"

    @property
    def bounds(self) -> str:
        if self.interval is None:
            return "interval not known"
        return f"95% interval {100 * self.interval.low:.1f} to {100 * self.interval.high:.1f}"

    @property
    def text(self) -> str:
        """For a table."""
        if self.interval is None:
            return self.points
        sign = "" if self.beyond_noise else " (noise)"
        return f"{self.points} [{100 * self.interval.low:+.1f}, {100 * self.interval.high:+.1f}]{sign}"


def difference(one: Measured, other: Measured) -> Difference:
    """Paired by client or by resample. A model of each client against one for all has both sources of chance."""
    if one.clients and other.clients:
        common = sorted(one.clients.keys() & other.clients.keys())
        gains = [one.clients[name] - other.clients[name] for name in common]
        return Difference(math.fsum(gains) / len(gains) if gains else math.nan, _of_mean(gains))
    gain = one.value - other.value
    if one.resampled and len(one.resampled) == len(other.resampled):
        return Difference(gain, interval(np.subtract(one.resampled, other.resampled), LEVEL))
    both = one.interval, other.interval
    if (one.clients or other.clients) and all(both):
        reach = math.hypot(*((each.high - each.low) / 2 for each in both if each))
        return Difference(gain, Interval(gain - reach, gain + reach))
    return Difference(gain, None)


def _of_mean(values: Sequence[float]) -> Interval | None:
    if len(values) < 2:
        return None
    middle, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error
    return Interval(middle - reach, middle + reach)
