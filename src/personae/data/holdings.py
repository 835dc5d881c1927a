"""Which client holds which image, and for what."""

import csv
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.faces import FaceSet, Rows
from personae.files import replacing


class Split(IntEnum):
    TRAIN = 0
    VAL = 1
    TEST = 2


NOBODY = -1


@dataclass(frozen=True)
class Holding:
    """What one client holds, in numbers."""

    client: str
    new: bool
    identities: int
    """0 where its faces are not labelled."""
    train: int
    val: int
    test: int


@dataclass(frozen=True, eq=False)
class Partition:
    """A table over the images of a face set: each is held by one client for one purpose, or by nobody."""

    clients: tuple[str, ...]
    client: Rows
    """Per image, a position in `clients`, or -1 where nobody holds it."""
    split: NDArray[np.uint8]
    """Per image, a `Split`; without meaning where nobody holds it."""
    new: frozenset[str] = frozenset()
    """Clients that take no part in training and are evaluated later."""
    source: str | None = None
    """By domain: the client that holds the source; all others are targets."""

    @property
    def trained(self) -> tuple[str, ...]:
        """The clients that take part in training."""
        return tuple(name for name in self.clients if name not in self.new)

    def rows(self, client: str, *splits: Split) -> Rows:
        """The images that a client holds for the given purposes (all by default), in ascending order."""
        order, bounds = self._by_client_and_split
        first = self._position[client] * len(Split)
        parts = [order[bounds[first + split] : bounds[first + split + 1]] for split in splits or Split]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    def summary(self, faces: FaceSet) -> list[Holding]:
        """One line per client."""
        held = (self.client != NOBODY) & faces.labelled
        pairs = np.unique(np.stack([self.client[held], faces.identity[held]]), axis=1)
        identities = np.bincount(pairs[0], minlength=len(self.clients))
        images = np.diff(self._by_client_and_split[1]).reshape(-1, len(Split))
        return [
            Holding(name, name in self.new, int(count), *map(int, row))
            for name, count, row in zip(self.clients, identities, images, strict=True)
        ]

    def write_table(self, faces: FaceSet, path: str | Path) -> None:
        """Client, identity (if known), image and split of every image that somebody holds, as CSV."""
        images = faces.columns.get("path", np.arange(len(faces)))
        with replacing(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("client", "identity", "image", "split"))
            for name in self.clients:
                for row in self.rows(name).tolist():
                    identity = faces.identities[faces.identity[row]] if faces.labelled[row] else ""
                    table.writerow((name, identity, images[row], Split(self.split[row]).name.lower()))

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.clients)}

    @cached_property
    def _by_client_and_split(self) -> tuple[Rows, Rows]:
        """All held images ordered by client and split, and where each of these groups begins."""
        held = np.flatnonzero(self.client != NOBODY)
        group = self.client[held] * len(Split) + self.split[held]
        order = np.argsort(group, kind="stable")
        bounds = np.zeros(len(self.clients) * len(Split) + 1, dtype=np.int64)
        np.cumsum(np.bincount(group, minlength=len(bounds) - 1), out=bounds[1:])
        return held[order], bounds
