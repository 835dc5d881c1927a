"""Dealing identities to clients: everybody gets at least one, then whoever is furthest below its quota."""

import heapq

import numpy as np
from numpy.typing import NDArray

Generator = np.random.Generator
Parts = NDArray[np.int64]


def equal_quotas(clients: int, total: float) -> NDArray[np.float64]:
    return np.full(clients, total / clients)


def lognormal_quotas(clients: int, total: float, mu: float, sigma: float, rng: Generator) -> NDArray[np.float64]:
    """Shares of `total` proportional to draws from a log-normal distribution (its mu cancels, yet papers state it)."""
    # Dividing by the largest draw first keeps even an extreme sigma finite.
    exponents = mu + sigma * rng.standard_normal(clients)
    draws = np.exp(exponents - exponents.max())
    shares: NDArray[np.float64] = total * draws / draws.sum()
    return shares


def at_least_one(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers of the same sum, none below one, as near to the shares as that allows."""
    total = round(float(shares.sum()))
    beyond = np.maximum(shares - 1, 0)
    spare = total - len(shares)
    exact = beyond * (spare / beyond.sum()) if beyond.sum() > 0 else np.full(len(shares), spare / len(shares))
    whole: NDArray[np.float64] = np.floor(exact)
    largest_remainders = np.argsort(whole - exact, kind="stable")[: round(spare - whole.sum())]
    whole[largest_remainders] += 1
    whole += 1
    return whole


def deal(weights: NDArray[np.int64], holders: NDArray[np.int64], quotas: NDArray[np.float64], rng: Generator) -> Parts:
    """Give each unit (an identity of `weights` images, or of weight one) to `holders` different clients.

    Returns [parts, 2]: unit and client. Needs as many units as clients. A unit held by several counts for each of
    them with its share of the weight.
    """
    clients = len(quotas)
    order = rng.permutation(len(weights))
    # The first units go one to each client, large ones to large quotas, so that nobody is left empty.
    seeds = order[:clients][np.argsort(weights[order[:clients]], kind="stable")]
    seeded = dict(zip(seeds.tolist(), np.argsort(quotas, kind="stable").tolist(), strict=True))
    # Heavy units first, as one packs a bag; equal ones stay in their random order.
    order = order[np.argsort(-weights[order], kind="stable")]
    left, turn = quotas.astype(np.float64), rng.permutation(clients)
    for unit, client in seeded.items():
        left[client] -= weights[unit] / holders[unit]
    heap = [(-left[client], int(turn[client]), client) for client in range(clients)]
    heapq.heapify(heap)
    parts = [*seeded.items()]
    for unit in order.tolist():
        taken = {seeded[unit]} if unit in seeded else set()
        put_back = []
        while len(taken) < holders[unit]:
            missing, place, client = heapq.heappop(heap)
            if client not in taken:
                taken.add(client)
                parts.append((unit, client))
                missing += weights[unit] / holders[unit]
            put_back.append((missing, place, client))
        for entry in put_back:
            heapq.heappush(heap, entry)
    return np.array(parts, dtype=np.int64)
