"""Where each entry of a network's state stands in one flat vector."""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Self

import torch
from torch import Tensor, nn

from personae.words import counted

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The float entries of a network's `state_dict` by name and shape, in the order in which the vector holds them.

    Trainable parameters come first, so that one slice of the vector is what an optimiser moves; frozen parameters and
    float buffers (the statistics of BatchNorm) follow. Integer buffers only count steps: they are not part of a model.
    With `channels_last`, which CPUs and GPUs prefer, the channels of a convolution lie side by side.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    trainable: int  # how many of the entries an optimiser moves
    channels_last: bool = True

    @classmethod
    def of(cls, module: nn.Module, *, channels_last: bool = True) -> Self:
        parameters = dict(module.named_parameters())
        moved = [name for name, parameter in parameters.items() if parameter.requires_grad]
        entries = {name: entry for name, entry in module.state_dict().items() if entry.is_floating_point()}
        for name, entry in entries.items():
            if entry.dtype != torch.float32:
                raise TypeError(f"{name} is {entry.dtype}: a backbone holds float32 alone")
        names = (*moved, *(name for name in entries if name not in set(moved)))
        return cls(names, tuple(tuple(entries[name].shape) for name in names), len(moved), channels_last)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        return tuple(accumulate(prod(shape) for shape in self.shapes))

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def trainable_size(self) -> int:
        return self.ends[self.trainable - 1] if self.trainable else 0

    @cached_property
    def statistics(self) -> frozenset[str]:
        """The running means and variances of BatchNorm."""
        return frozenset(f"{norm}running_{which}" for norm in self._norms for which in ("mean", "var"))

    @cached_property
    def variances(self) -> frozenset[str]:
        """The running variances of BatchNorm alone."""
        return frozenset(f"{norm}running_var" for norm in self._norms)

    @cached_property
    def variance_places(self) -> Tensor:
        """Where in the vector these stand."""
        starts = zip(self.names, (0, *self.ends), self.ends, strict=False)
        runs = [torch.arange(start, end) for name, start, end in starts if name in self.variances]
        return torch.cat(runs) if runs else torch.arange(0)

    @cached_property
    def batch_norm(self) -> frozenset[str]:
        """All entries of BatchNorm: its statistics, scales and shifts."""
        affine = {f"{norm}{which}" for norm in self._norms for which in ("weight", "bias")}
        return self.statistics | affine.intersection(self.names)

    @property
    def _norms(self) -> list[str]:
        """What the names of a layer with statistics begin with."""
        return [name.removesuffix("running_mean") for name in self.names if name.endswith("running_mean")]

    def only(self, names: Collection[str]) -> Self:
        """The layout of these entries alone, in the same order."""
        kept = [index for index, name in enumerate(self.names) if name in names]
        return replace(
            self,
            names=tuple(self.names[index] for index in kept),
            shapes=tuple(self.shapes[index] for index in kept),
            trainable=sum(index < self.trainable for index in kept),
        )

    def without(self, names: Collection[str]) -> Self:
        return self.only([name for name in self.names if name not in names])

    def name_at(self, place: int) -> str:
        """The entry that holds this number of the vector."""
        return self.names[bisect_right(self.ends, place)]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The entries as views of the vector."""
        result = {}
        for name, shape, start, end in zip(self.names, self.shapes, (0, *self.ends), self.ends, strict=False):
            part = flat[start:end]
            if len(shape) == 4 and self.channels_last:
                out, into, height, width = shape
                result[name] = part.view(out, height, width, into).permute(0, 3, 1, 2)
            else:
                result[name] = part.view(shape)
        return result

    def flatten(self, entries: Mapping[str, Tensor]) -> Tensor:
        """The vector of these entries; names and shapes have to be exactly those of the layout."""
        problem = self.mismatch({name: tuple(entry.shape) for name, entry in entries.items()})
        if problem:
            raise ValueError(problem)
        flat = torch.empty(self.size, device=next(iter(entries.values())).device)
        for name, view in self.views(flat).items():
            if entries[name].dtype != torch.float32:
                raise ValueError(f"{name} is {entries[name].dtype}, expected torch.float32")
            view.copy_(entries[name])
        return flat

    def mismatch(self, shapes: Mapping[str, Shape]) -> str | None:
        """What differs between these names and shapes and the layout's own, in one phrase."""
        missing = [name for name in self.names if name not in shapes]
        if missing:
            return f"{counted(len(missing), 'entry is', 'entries are')} missing, {missing[0]} first"
        surplus = [name for name in shapes if name not in set(self.names)]
        if surplus:
            return f"{counted(len(surplus), 'entry is', 'entries are')} unknown, {surplus[0]} first"
        for name, shape in zip(self.names, self.shapes, strict=True):
            if shapes[name] != shape:
                return f"{name} has shape {shapes[name]}, expected {shape}"
        return None
