"""What makes a round fast without being a part of the experiment."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

from personae.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Acceleration:
    """Optimisations of the engine, each of which can be switched off. No algorithm knows of them.

    On a CPU none changes a bit of the result, except `channels_last`, `prelu` and `folding`, which change the last
    bits. On a GPU the result is that of the plain path up to the order of sums.
    """

    channels_last: bool = True  # images and convolutions with the channels of a pixel side by side in memory
    prelu: bool = True  # CPU: a faster backward pass of PReLU
    folding: bool = True  # CPU: faces are embedded with BatchNorm folded into the layers before it
    memory: bool = True  # CPU: what a step frees stays with the process, for the next step
    sharing: bool = True  # models go between processes in memory that both see
    resident: bool = True  # GPU: faces stay there as bytes, where they fit
    graphs: bool = True  # GPU: a training step is captured once and replayed for client after client
    padding: bool = True  # GPU: class embeddings are filled up to a few widths, so that clients share a graph

    def without(self, names: Iterable[str]) -> Self:
        """The same with some of them switched off."""
        for name in names:
            if name not in OPTIMISATIONS:
                raise ConfigError(f"--without {name}: there are {', '.join(OPTIMISATIONS)}")
        return replace(self, **dict.fromkeys(names, False))


OPTIMISATIONS = tuple(each.name for each in fields(Acceleration))
