"""How figures are spread over clients or groups of people: what reports need, without PyTorch."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """One metric over the clients (or groups) that have it; the deviation is the population's, higher is better."""

    mean: float
    deviation: float
    worst: float
    best: float
    clients: int
    worst_decile: float
    """The mean of the worst tenth, of one client at least."""

    @property
    def gap(self) -> float:
        """How much better the best is served than the worst."""
        return self.best - self.worst


def spread(per_client: Mapping[str, Mapping[str, float]]) -> dict[str, Spread]:
    """Each metric over the clients, or over groups of people; sums are exact, so their order does not show."""
    return {name: _spread(values) for name, values in by_metric(per_client).items()}


@dataclass(frozen=True)
class Served:
    """How one metric is spread over clients under the global model and under the model that each of them uses."""

    shared: Spread
    personal: Spread
    gains: dict[str, float]
    """By client, how much higher the metric is under its own model."""


def served(per_client: Mapping[str, Mapping[str, float]]) -> dict[str, Served]:
    """By metric, over the clients that have it under both models: figures called `global/...` and `personal/...`."""
    pairs: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for client, metrics in per_client.items():
        for name, value in metrics.items():
            kind, _, metric = name.partition("/")
            if kind == "global" and f"personal/{metric}" in metrics:
                pairs[metric][client] = value, metrics[f"personal/{metric}"]
    return {
        metric: Served(
            _spread([before for before, _ in clients.values()]),
            _spread([after for _, after in clients.values()]),
            {client: after - before for client, (before, after) in clients.items()},
        )
        for metric, clients in pairs.items()
    }


def by_metric(per_client: Mapping[str, Mapping[str, float]]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for metrics in per_client.values():
        for name, value in metrics.items():
            values[name].append(value)
    return values


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    worst = statistics.mean(ordered[: tenth(len(ordered))])
    return Spread(
        statistics.mean(ordered), statistics.pstdev(ordered), ordered[0], ordered[-1], len(ordered), worst_decile=worst
    )


def tenth(count: int) -> int:
    """Rounded up."""
    return -(-count // 10)
