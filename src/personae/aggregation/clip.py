"""Updates no longer than a bound."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from personae.aggregation.prepared import Preparation
from personae.core.aggregation import Vectors, Workbench
from personae.core.bounds import above


@dataclass(frozen=True, kw_only=True)
class Clip(Preparation):
    """A vector farther than `norm` from where it started is drawn back to that distance, in the same direction."""

    name: ClassVar[str] = "clip"

    norm: Annotated[float, above(0)]
    """The largest distance from the model that was sent out."""

    def apply(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Iterator[tuple[Tensor, float]]:  # noqa: ARG002
        for vector, weight in vectors:
            begin = around.to(vector.device)
            distance = float((vector - begin).norm())
            yield (begin.lerp(vector, self.norm / distance) if distance > self.norm else vector), weight
