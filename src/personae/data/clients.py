"""A partitioned face set as the clients of a federation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from personae.core.holdings import ClientFaces
from personae.data.faces import FaceSet, Rows
from personae.data.holdings import Partition, Split
from personae.data.samples import FaceSamples


@dataclass(frozen=True, eq=False)
class Strangers(FaceSamples):
    """Test faces of others: some of everybody's, which are the `whole` for every client (`embedder.Excerpt`)."""

    whole: FaceSamples
    places: Tensor


@dataclass(frozen=True, eq=False)
class PartitionedFaces:
    """`personae.core.holdings.Holdings` over one face set."""

    faces: FaceSet
    partition: Partition

    @property
    def clients(self) -> tuple[str, ...]:
        return self.partition.clients

    @property
    def newcomers(self) -> frozenset[str]:
        return self.partition.new

    def of(self, client: str) -> ClientFaces:
        rows = self.partition.rows(client)
        held = self.faces.samples(rows)
        purposes = self.partition.split[rows]
        train, val, test = (_for_purpose(held, purposes == split) for split in Split)
        return ClientFaces(train, val, test, partial(self._strangers, client))

    def pooled(self, split: Split, clients: Sequence[str] | None = None) -> FaceSamples:
        """The faces of these clients, all by default, in one place, as only a comparison may have them."""
        return self.faces.samples(self.pooled_rows(split, clients))

    def pooled_rows(self, split: Split, clients: Sequence[str] | None = None) -> Rows:
        names = self.clients if clients is None else clients
        return np.sort(np.concatenate([self.partition.rows(name, split) for name in names]))

    @cached_property
    def _everybody(self) -> FaceSamples:
        """All test faces, in the order of the set."""
        return self.pooled(Split.TEST)

    def _strangers(self, client: str) -> Strangers:
        """Everybody else's labelled test faces; of people whom the client knows, under its own labels for them."""
        own = np.unique(self.faces.identity[self.partition.rows(client)])
        others = [self.partition.rows(name, Split.TEST) for name in self.clients if name != client]
        rows = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *others]))
        rows = rows[self.faces.labelled[rows]]
        unknown = np.setdiff1d(self.faces.identity[rows], own)
        codes = np.concatenate([own, unknown])
        order = np.argsort(codes)
        labels = order[np.searchsorted(codes, self.faces.identity[rows], sorter=order)]
        names = tuple(self.faces.identities[code] for code in codes)
        places = torch.from_numpy(np.searchsorted(self.pooled_rows(Split.TEST), rows))
        stored = self.faces.stored[rows]
        return Strangers(names, torch.from_numpy(labels), self.faces.pixels, stored, self._everybody, places)


def _for_purpose(held: FaceSamples, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> FaceSamples:
    """A part of a client's faces under the labels of the whole, so that training and test labels mean the same."""
    positions = np.flatnonzero(chosen)
    return replace(held, labels=held.labels[torch.from_numpy(positions)], stored=held.stored[positions])
