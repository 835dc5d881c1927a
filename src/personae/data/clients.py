"""A partitioned face set as the clients of a federation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from personae.data.faces import FaceSamples, FaceSet
from personae.data.holdings import Partition, Split
from personae.runtime.federation import ClientFaces


@dataclass(frozen=True, eq=False)
class PartitionedFaces:
    """`personae.runtime.federation.Holdings` over one face set."""

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
        return ClientFaces(*(_for_purpose(held, purposes == split) for split in Split))

    def pooled(self, split: Split, clients: Sequence[str] | None = None) -> FaceSamples:
        """The faces of these clients, all by default, in one place, as only a comparison may have them."""
        names = self.clients if clients is None else clients
        return self.faces.samples(np.sort(np.concatenate([self.partition.rows(name, split) for name in names])))


def _for_purpose(held: FaceSamples, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> FaceSamples:
    """A part of a client's faces under the labels of the whole, so that training and test labels mean the same."""
    positions = np.flatnonzero(chosen)
    return replace(held, labels=held.labels[torch.from_numpy(positions)], stored=held.stored[positions])
