"""A rule with something done to the vectors before."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from personae.core.aggregation import Aggregation, Vectors, Workbench
from personae.core.bounds import Bounded


class Preparation(Bounded, ABC):
    """What can be done to vectors before any rule: a frozen dataclass of its settings."""

    name: ClassVar[str]
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def least(self, wanted: int) -> int:
        """How many vectors it takes so that so many are left."""
        return wanted

    @abstractmethod
    def apply(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Iterator[tuple[Tensor, float]]:
        """Other vectors with their weights; `around` is what all of them started from."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Aggregation):
    """Preparations one after the other, and then the rule."""

    rule: Aggregation
    before: tuple[Preparation, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.rule.name

    @property
    def least(self) -> int:
        wanted = self.rule.least
        for preparation in reversed(self.before):
            wanted = preparation.least(wanted)
        return wanted

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        for preparation in self.before:
            vectors = preparation.apply(vectors, around, bench)
        return self.rule.combine(vectors, around, bench)
