"""Dealing identities to clients: everybody gets at least one, the rest goes by chance to those with quota left."""

import numpy as np
from numpy.typing import NDArray

Generator = np.random.Generator
Parts = NDArray[np.int64]


def lognormal_quotas(clients: int, total: float, mu: float, sigma: float, rng: Generator) -> NDArray[np.float64]:
    """Shares of `total` in proportion to log-normal draws; mu cancels, and no spread makes them equal."""
    # Dividing by the largest draw first keeps even an extreme sigma finite.
    exponents = mu + sigma * rng.standard_normal(clients)
    draws = np.exp(exponents - exponents.max())
    shares: NDArray[np.float64] = total * draws / draws.sum()
    return shares


def at_least(least: int, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers of the same sum, none below the least, as near to the shares as that allows."""
    total = round(float(shares.sum()))
    beyond = np.maximum(shares - least, 0)
    spare = total - least * len(shares)
    exact = beyond * (spare / beyond.sum()) if beyond.sum() > 0 else np.full(len(shares), spare / len(shares))
    whole: NDArray[np.float64] = np.floor(exact)
    largest_remainders = np.argsort(whole - exact, kind="stable")[: round(spare - whole.sum())]
    whole[largest_remainders] += 1
    whole += least
    return whole


def deal(weights: NDArray[np.int64], holders: NDArray[np.int64], quotas: NDArray[np.float64], rng: Generator) -> Parts:
    """Give each unit (an identity, weighing its images or just one) to `holders` different clients.

    Returns [parts, 2]: unit and client. Needs as many units as clients. A unit held by several counts for each of
    them with its share of the weight.
    """
    order = rng.permutation(len(weights))
    # The first units go one to each client, large ones to large quotas, so that nobody is left empty.
    seeds = order[: len(quotas)]
    seeds = seeds[np.argsort(weights[seeds], kind="stable")]
    first_holder = dict(zip(seeds.tolist(), np.argsort(quotas, kind="stable").tolist(), strict=True))
    room = _Room(quotas)
    for unit, client in first_holder.items():
        room.charge(client, float(weights[unit] / holders[unit]))
    parts = []
    # Heavy units first: the light ones fill the gaps that remain.
    for unit in order[np.argsort(-weights[order], kind="stable")].tolist():
        taken = [first_holder[unit]] if unit in first_holder else []
        while len(taken) < holders[unit]:
            taken.append(room.draw(taken, rng))
            room.charge(taken[-1], float(weights[unit] / holders[unit]))
        parts += [(unit, client) for client in taken]
    return np.array(parts, dtype=np.int64)


class _Room:
    """How much of their quotas clients have left."""

    def __init__(self, quotas: NDArray[np.float64]) -> None:
        self._left = quotas.copy()
        self._room = quotas.copy()

    def charge(self, client: int, weight: float) -> None:
        self._left[client] -= weight
        self._room[client] = max(self._left[client], 0)

    def draw(self, taken: list[int], rng: Generator) -> int:
        """A client that is not taken yet, likelier the more room it has; once nobody has any, the least overfull."""
        room = self._room
        if taken:
            room = room.copy()
            room[taken] = 0
        running = np.cumsum(room)
        if running[-1] > 0:
            return int(np.searchsorted(running, (1 - rng.random()) * running[-1]))
        left = self._left.copy()
        left[taken] = -np.inf
        return int(left.argmax())
