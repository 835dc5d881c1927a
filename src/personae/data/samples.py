"""Faces of an index as an algorithm sees them."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from personae.data.faces import Rows, canonical
from personae.data.pixels import Store


@dataclass(frozen=True, eq=False)
class FaceSamples:
    """Faces of one party as `personae.core.samples.Samples`."""

    identities: tuple[str, ...]
    """The name behind each label."""
    labels: Tensor
    pixels: Store
    stored: Rows

    @property
    def classes(self) -> int:
        return len(self.identities)

    def __len__(self) -> int:
        return len(self.stored)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the images, whoever is on them."""
        content = f"{self.pixels.digest} {self.pixels.height} {self.pixels.width} ".encode()
        return hashlib.sha256(content + canonical(self.stored)).hexdigest()

    def images(self, positions: Tensor) -> Tensor:
        device = positions.device
        if device.type != "cpu" and (resident := self.pixels.on(device)) is not None:
            return resident.index_select(0, self._stored_on(device)[positions])
        return torch.from_numpy(self.pixels.take(self.stored[positions.cpu().numpy()])).to(device)

    def _stored_on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(self.stored).to(device)
        return self._copies[device]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}
