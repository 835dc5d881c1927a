"""How faces are divided among clients: the options, and the partition they make of a face set."""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from personae.data.dealing import Generator, at_least, deal, lognormal_quotas
from personae.data.faces import UNLABELLED, FaceSet, Rows
from personae.data.holdings import NOBODY, Holding, Partition, Split
from personae.data.pools import Pool, by_attributes, by_domain
from personae.data.predicates import parse
from personae.errors import ConfigError, DataError
from personae.words import counted

__all__ = ["Holding", "Partition", "PartitionPlan", "Split"]

By = Literal["equal", "one-identity", "lognormal-identities", "lognormal-images", "attributes", "domain"]
_COUNTED: tuple[By, ...] = ("equal", "lognormal-identities", "lognormal-images")


@dataclass(frozen=True, kw_only=True)
class PartitionPlan:
    """Options of a partition. Identities are dealt to clients; each identity's images are then split for its holder.

    Where nobody says who is on the images, these are dealt one by one.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    by: By = "equal"
    """How identities are dealt."""
    clients: int | None = None
    """All clients; by attributes or domain, the clients per predicate or target domain (one unless given);
    with one identity per client, as many as there are identities unless given."""
    mu: float = 3.0
    """Log-normal: the mean of the logarithm of what a client holds."""
    sigma: float = 3.0
    """Log-normal: the standard deviation of that logarithm."""
    shared: float = 0.0
    """The share of identities whose images are divided among several clients, each of which then knows the person."""
    holders: int = 2
    """How many clients hold a shared identity."""
    new_clients: int = 0
    """How many of the clients, the last ones, take no part in training."""
    train: float = 0.7
    """The share of the images of an identity that its holder trains on."""
    val: float = 0.1
    """The share for validation."""
    test: float = 0.2
    """The share for tests."""
    predicates: tuple[str, ...] = ()
    """By attributes: which images a client holds, such as "Male & !Young"."""
    source: str = ""
    """By domain: the domain that is one client of its own; every other one is a target."""
    min_images: int = 2
    """An identity needs as many images at each of its holders."""
    min_identities: int = 1
    """Log-normal over identities: how many every client holds at least."""
    drop_small: bool = False
    """Leave identities with fewer images out instead of refusing to continue."""
    seed: int | None = None
    """Deals and splits by this seed in place of the run's, so that runs of several seeds have one partition."""
    max_images: int | None = None
    """What a client may hold; identities that do not fit any more are held by nobody. Evens out attributes, say."""

    def __post_init__(self) -> None:
        for wrong, complaint in (
            (self.clients is not None and self.clients < 1, "`clients` must be at least 1"),
            (not 0 <= self.shared <= 1, "`shared` is a share of the identities, from 0 to 1"),
            (self.shared > 0 and self.by not in _COUNTED, f"`shared` goes with {', '.join(_COUNTED)} only"),
            (self.holders < 2, "`holders` must be at least 2"),
            (self.shared > 0 and (self.clients or 0) < self.holders, "`holders` cannot exceed `clients`"),
            (self.new_clients < 0, "`new_clients` cannot be negative"),
            (not (np.isfinite(self.mu) and 0 <= self.sigma < np.inf), "`mu` must be finite and `sigma` not negative"),
            (
                min(self.val, self.test) < 0 or self.train <= 0,
                "`train` must be positive, `val` and `test` not negative",
            ),
            (not abs(self.train + self.val + self.test - 1) <= 1e-6, "`train`, `val` and `test` must add up to 1"),
            (self.min_images < 1, "`min_images` must be at least 1"),
            (self.min_identities < 1, "`min_identities` must be at least 1"),
            (
                self.min_identities > 1 and self.by != "lognormal-identities",
                "`min_identities` goes with by 'lognormal-identities' only",
            ),
            (self.max_images is not None and self.max_images < self.min_images, "`max_images` is below `min_images`"),
            ((self.by == "attributes") != bool(self.predicates), "`predicates` and by 'attributes' go together"),
            ((self.by == "domain") != bool(self.source), "`source` and by 'domain' go together"),
        ):
            if wrong:
                raise ConfigError(f"partition: {complaint}")
        for predicate in self.predicates:
            parse(predicate)

    def apply(self, faces: FaceSet, seed: int) -> Partition:
        """The same faces and seed give the same partition, in whatever order the faces are listed.

        `seed` is the run's, for a plan that has none of its own.
        """
        if self.by in _COUNTED and self.clients is None:  # over a network nothing is dealt, and nobody has to say it
            raise ConfigError(f"partition: by {self.by!r} needs the number of `clients`")
        entropy = hashlib.sha256(f"{seed if self.seed is None else self.seed}/partition".encode()).digest()
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(entropy, "little")))
        order = _canonical_order(faces)
        ordered = faces.select(order)
        client = np.full(len(faces), NOBODY, dtype=np.int64)
        names: list[str] = []
        for pool in self._pools(ordered, rng):
            holder = self._deal(ordered, pool, rng)
            client[pool.rows] = np.where(holder == NOBODY, NOBODY, holder + len(names))
            names += pool.client_names(int(holder.max()) + 1, after=len(names))
        if self.max_images is not None:
            client = _capped(client, ordered.identity, self.max_images, rng)
        if self.new_clients >= len(names):
            raise ConfigError(
                f"partition: `new_clients` is {self.new_clients} of {counted(len(names), 'client')}; some must train"
            )
        split = self._split(client, ordered.identity, rng)
        back = np.argsort(order)
        new = frozenset(names[len(names) - self.new_clients :])
        return Partition(tuple(names), client[back], split[back], new, self.source or None)

    def _pools(self, faces: FaceSet, rng: Generator) -> list[Pool]:
        if self.by == "attributes":
            return by_attributes(faces, self.predicates, self.clients or 1, rng)
        if self.by == "domain":
            return by_domain(faces, self.source, self.clients or 1)
        return [Pool(faces.name, np.arange(len(faces)), self.clients)]

    def _deal(self, faces: FaceSet, pool: Pool, rng: Generator) -> Rows:
        """Per row of the pool, the position of its client among those of the pool."""
        if not faces.labelled[pool.rows].all():
            return self._deal_images(faces, pool, rng)
        identity = faces.identity[pool.rows]
        codes, counts = self._large_enough(faces, pool, identity)
        clients = pool.clients or max(len(codes), 1)
        if len(codes) < clients * self.min_identities:
            having = f" with at least {self.min_images} images" if self.min_images > 1 else ""
            advice = "ask for fewer clients or bring more faces"
            found = f"{counted(len(codes), 'identity')}{having} {'is' if len(codes) == 1 else 'are'}"
            each = f" with {self.min_identities} each" if self.min_identities > 1 else ""
            raise DataError(f"{pool.name}: {found} too few for {counted(clients, 'client')}{each}; {advice}")
        if self.by == "one-identity":
            chosen = np.sort(rng.permutation(len(codes))[:clients])
            codes, counts = codes[chosen], counts[chosen]
        holders = self._holders(faces, counts, rng)
        if self.by == "lognormal-images":
            weights, quotas = counts, lognormal_quotas(clients, counts.sum(), self.mu, self.sigma, rng)
        else:
            sigma = self.sigma if self.by == "lognormal-identities" else 0.0
            shares = lognormal_quotas(clients, holders.sum(), self.mu, sigma, rng)
            weights, quotas = holders, at_least(self.min_identities, shares)
        parts = deal(weights, holders, quotas, rng)
        return _divide(identity, codes, parts, rng)

    def _deal_images(self, faces: FaceSet, pool: Pool, rng: Generator) -> Rows:
        """The same of images that are not labelled: each by itself, in equal or log-normal shares."""
        if faces.labelled[pool.rows].any():
            raise ConfigError(
                f"partition: {pool.name} has both labelled and unlabelled faces; make them parts of [data.private] and "
                "divide by 'domain', so that no client has both"
            )
        if self.by not in ("equal", "lognormal-images", "domain") or self.shared:
            option = "`shared`" if self.shared else f"by {self.by!r}"
            raise ConfigError(
                f"partition: {option} needs to know who is on the images, and {pool.name} is unlabelled; "
                "deal it by 'equal', 'lognormal-images' or 'domain'"
            )
        clients = pool.clients or 1
        if len(pool.rows) < clients * self.min_images:
            raise DataError(
                f"{pool.name}: {counted(len(pool.rows), 'image is', 'images are')} too few for "
                f"{counted(clients, 'client')} with {self.min_images} each; ask for fewer clients or bring more faces"
            )
        sigma = self.sigma if self.by == "lognormal-images" else 0.0
        spare = len(pool.rows) - clients * (self.min_images - 1)
        shares = at_least(1, lognormal_quotas(clients, spare, self.mu, sigma, rng)) + self.min_images - 1
        holder: Rows = rng.permutation(np.repeat(np.arange(clients), shares.astype(np.int64)))
        return holder

    def _large_enough(self, faces: FaceSet, pool: Pool, identity: Rows) -> tuple[Rows, Rows]:
        codes, counts = np.unique(identity, return_counts=True)
        small = counts < self.min_images
        if small.any() and not self.drop_small:
            first = faces.identities[codes[small][0]]
            advice = "set drop_small to leave them out, or lower min_images"
            raise DataError(
                f"{pool.name}: {small.sum()} of {counted(len(codes), 'identity')} "
                f"{'has' if small.sum() == 1 else 'have'} fewer than {counted(self.min_images, 'image')}, "
                f"the first is {first!r}; {advice}"
            )
        return codes[~small], counts[~small]

    def _holders(self, faces: FaceSet, counts: Rows, rng: Generator) -> Rows:
        """Per identity, how many clients share it."""
        holders = np.ones(len(counts), dtype=np.int64)
        wanted = round(self.shared * len(counts))
        if wanted:
            divisible = np.flatnonzero(counts >= self.holders * self.min_images)
            if len(divisible) < wanted:
                need = self.holders * self.min_images
                advice = "lower shared, holders or min_images"
                raise DataError(
                    f"{faces.name}: {counted(wanted, 'identity is', 'identities are')} to be shared by {self.holders} "
                    f"clients each, but only {counted(len(divisible), 'has', 'have')} the {need} images that "
                    f"takes; {advice}"
                )
            holders[rng.permutation(divisible)[:wanted]] = self.holders
        return holders

    def _split(self, client: Rows, identity: Rows, rng: Generator) -> NDArray[np.uint8]:
        """Split each identity of each client; over a client, the parts come as near to their shares as they can."""
        chance = rng.random(len(client))
        order = np.lexsort((chance, identity, client))
        order = order[client[order] != NOBODY]
        _, start, images = np.unique(
            np.stack([client[order], identity[order]]), axis=1, return_index=True, return_counts=True
        )
        test = _systematic(images, self.test, rng.random())
        if self.test > 0:
            test = np.maximum(test, 1)
        test = np.minimum(test, images - 1)
        val = np.minimum(_systematic(images, self.val, rng.random()), images - 1 - test)
        rank = np.arange(len(order)) - np.repeat(start, images)
        split = np.full(len(client), Split.TRAIN, dtype=np.uint8)
        split[order[rank < np.repeat(test + val, images)]] = Split.VAL
        split[order[rank < np.repeat(test, images)]] = Split.TEST
        return split


def _capped(client: Rows, identity: Rows, most: int, rng: Generator) -> Rows:
    """Whole identities, in random order, for as long as they fit; the first one whatever its size."""
    kept = client.copy()
    for holder in np.unique(client[client != NOBODY]):
        held = np.flatnonzero(client == holder)
        if identity[held[0]] == UNLABELLED:
            kept[rng.permutation(held)[most:]] = NOBODY
            continue
        codes, counts = np.unique(identity[client == holder], return_counts=True)
        order, total = rng.permutation(len(codes)), 0
        for number, place in enumerate(order.tolist()):
            if number and total + counts[place] > most:
                kept[(client == holder) & (identity == codes[place])] = NOBODY
            else:
                total += int(counts[place])
    return kept


def _systematic(counts: Rows, share: float, offset: float) -> Rows:
    """Whole numbers near share * counts whose running sum never strays from the exact one by as much as one."""
    exact = np.concatenate([[0.0], np.cumsum(counts) * share]) + offset
    return np.diff(np.floor(exact)).astype(np.int64)


def _divide(identity: Rows, codes: Rows, parts: Rows, rng: Generator) -> Rows:
    """Deal the images of each identity in turn to its holders; identities without any stay with nobody."""
    parts = parts[np.lexsort((parts[:, 1], parts[:, 0]))]
    holders = np.bincount(parts[:, 0], minlength=len(codes))
    first = np.concatenate([[0], np.cumsum(holders)[:-1]])
    unit = np.searchsorted(codes, identity)
    unit[unit == len(codes)] = 0
    held = codes[unit] == identity
    order = np.lexsort((rng.random(len(identity)), identity))
    order = order[held[order]]
    unit = unit[order]
    rank = np.arange(len(order)) - np.searchsorted(unit, unit)
    holder = np.full(len(identity), NOBODY, dtype=np.int64)
    holder[order] = parts[first[unit] + rank % holders[unit], 1]
    return holder


def _canonical_order(faces: FaceSet) -> Rows:
    """By identity and, where it is known, by path: the order in which faces happen to be listed means nothing.

    Faces without labels are in an order of their own already (`data/unlabelled.py`), and paths could tell who they are.
    """
    if "path" in faces.columns:
        return np.lexsort((np.where(faces.labelled, faces.columns["path"], ""), faces.identity))
    return np.argsort(faces.identity, kind="stable")
