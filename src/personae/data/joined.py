"""Several face sets as one: every set becomes a domain, with people of its own."""

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from personae.data.faces import UNLABELLED, FaceSet, Rows
from personae.data.pixels import Pixels, Store
from personae.errors import ConfigError

_joining = threading.Lock()


def join_faces(name: str, parts: Mapping[str, FaceSet]) -> FaceSet:
    """One set with the domains that `parts` name, labelled or not. Columns that not all of them have are left out."""
    sets = list(parts.values())
    if len({faces.size for faces in sets}) != 1:
        sizes = ", ".join(f"{domain} {faces.size[1]} x {faces.size[0]}" for domain, faces in parts.items())
        raise ConfigError(f"{name}: images must have one size to be joined ({sizes}); open all at the same")
    codes = np.cumsum([0, *(len(faces.identities) for faces in sets)])
    rows = np.cumsum([0, *(len(faces) for faces in sets)])
    common = [column for column in sets[0].columns if all(column in faces.columns for faces in sets)]
    columns = {column: np.concatenate([faces.columns[column] for faces in sets]) for column in common}
    return FaceSet(
        name=name,
        identities=tuple(f"{domain}/{person}" for domain, faces in parts.items() for person in faces.identities),
        identity=np.concatenate(
            [
                np.where(faces.labelled, faces.identity + first, UNLABELLED)
                for faces, first in zip(sets, codes[:-1], strict=True)
            ]
        ),
        columns=columns | {"domain": np.repeat(np.array(list(parts)), np.diff(rows))},
        pixels=JoinedStores(tuple(faces.pixels for faces in sets), tuple(faces.stored for faces in sets)),
        stored=np.arange(rows[-1]),
        unreadable=sum(faces.unreadable for faces in sets),
        plain=sum(faces.plain for faces in sets),
    )


@dataclass(frozen=True, eq=False)
class JoinedStores:
    """Rows of several stores, one after the other."""

    stores: tuple[Store, ...]
    stored: tuple[Rows, ...]
    """Per store, the rows taken from it."""

    @property
    def height(self) -> int:
        return self.stores[0].height

    @property
    def width(self) -> int:
        return self.stores[0].width

    @cached_property
    def digest(self) -> str:
        parts = zip(self.stores, self.stored, strict=True)
        return hashlib.sha256(repr([(store.digest, rows.tolist()) for store, rows in parts]).encode()).hexdigest()

    def take(self, rows: Rows) -> Pixels:
        ends = np.cumsum([len(stored) for stored in self.stored])
        which = np.searchsorted(ends, rows, side="right")
        pixels = np.empty((len(rows), self.height, self.width, 3), dtype=np.uint8)
        for number in np.unique(which):
            mine = which == number
            local = rows[mine] - (ends[number] - len(self.stored[number]))
            pixels[mine] = self.stores[number].take(self.stored[number][local])
        return pixels

    def on(self, device: torch.device) -> Tensor | None:
        with _joining:
            if device not in self._copies:
                parts = [store.on(device) for store in self.stores]
                there = [part for part in parts if part is not None]
                self._copies[device] = None
                if len(there) == len(parts):
                    rows = [torch.from_numpy(stored).to(device) for stored in self.stored]
                    joined = torch.cat([part[row] for part, row in zip(there, rows, strict=True)])
                    torch.cuda.synchronize(device)  # other streams will read it
                    self._copies[device] = joined
        return self._copies[device]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor | None]:
        return {}
