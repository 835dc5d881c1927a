"""Images that belong together before any identity is dealt: those of one predicate, or of one domain."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from personae.data.dealing import Generator
from personae.data.faces import FaceSet, Rows
from personae.data.predicates import parse
from personae.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows of a face set that are divided among clients of their own."""

    name: str
    rows: Rows
    clients: int | None
    """How many, or None for one per identity."""
    prefix: str = ""
    """What the clients are called; numbered through the whole partition unless given."""

    def client_names(self, count: int, after: int) -> list[str]:
        if not self.prefix:
            return [f"client-{number:03d}" for number in range(after, after + count)]
        return [self.prefix] if count == 1 else [f"{self.prefix}-{number:03d}" for number in range(count)]


def by_attributes(faces: FaceSet, predicates: Sequence[str], clients: int, rng: Generator) -> list[Pool]:
    """One pool per predicate.

    Images that fit several go, all of an identity together, to the smallest of those pools; images that fit none
    are held by nobody.
    """
    fits = np.stack([parse(predicate).fits(faces.columns) for predicate in predicates], axis=1)
    for predicate, fitting in zip(predicates, fits.T, strict=True):
        if not fitting.any():
            raise DataError(f"{faces.name}: no image fits the predicate {predicate!r}; loosen it or leave it out")
    key = np.concatenate([faces.identity[:, None], np.packbits(fits, axis=1)], axis=1)
    _, group, sizes = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    choices = np.zeros((len(sizes), len(predicates)), dtype=bool)
    choices[group] = fits
    shuffled = rng.permutation(len(sizes))
    # Groups without a choice first, then the large ones: the small ones even out what is left.
    order = shuffled[np.lexsort((-sizes[shuffled], choices[shuffled].sum(axis=1) > 1))]
    load = np.zeros(len(predicates))
    pool_of_group = np.full(len(sizes), -1)
    for index in order[choices[order].any(axis=1)].tolist():
        pool = int(np.where(choices[index], load, np.inf).argmin())
        pool_of_group[index] = pool
        load[pool] += sizes[index]
    pool_of_row = pool_of_group[group]
    return [
        Pool(f"{faces.name}, images with {predicate!r}", np.flatnonzero(pool_of_row == number), clients)
        for number, predicate in enumerate(predicates)
    ]


def by_domain(faces: FaceSet, source: str, clients: int) -> list[Pool]:
    """The source first, as one client; then each other domain in the order of their names."""
    if "domain" not in faces.columns:
        raise DataError(f"{faces.name}: its images have no domain; add a `domain` column to labels.csv")
    domains = sorted(set(faces.columns["domain"].tolist()))
    if source not in domains:
        nearest = difflib.get_close_matches(source, domains, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(domains)}"
        raise ConfigError(f"partition: no domain is called {source!r}; {hint}")
    if len(domains) == 1:
        raise DataError(f"{faces.name}: {source!r} is the only domain; at least one more is needed as a target")
    domains.remove(source)
    return [
        Pool(f"{faces.name}, {domain}", np.flatnonzero(faces.columns["domain"] == domain), count, domain)
        for domain, count in ((source, 1), *((target, clients) for target in domains))
    ]
