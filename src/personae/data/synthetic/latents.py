"""The base of all typed bundles of per-image numbers."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Latents:
    """Named tensors (or bundles of them) that share their first dimension, one row for each image."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = {}
        for field in fields(self):
            value = getattr(self, field.name)
            changed[field.name] = value.map(change) if isinstance(value, Latents) else change(value)
        return replace(self, **changed)

    def as_fields(self, device: torch.device) -> Self:
        """Single-precision numbers that broadcast over pixels: [N] becomes [N, 1, 1], colours [N, 3, 1, 1]."""
        return self.map(lambda tensor: tensor.to(device, torch.float32)[..., None, None])

    def rows(self, index: Tensor | slice) -> Self:
        """Some of the rows; a layer needs few of all the tensors, so each is selected when it is first asked for."""
        chosen = object.__new__(type(self))
        chosen.__dict__.update(_source=self, _index=index)
        return chosen

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            value = getattr(self._source, name)
            value = value.rows(self._index) if isinstance(value, Latents) else value[self._index]
            self.__dict__[name] = value
            return value
