"""A term of the local objective: what a client adds to the loss of its algorithm."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.bounds import Bounded, positive
from personae.core.payload import ModelState
from personae.parts.batches import Batch

Value = Callable[[Batch, Tensor], Tensor]  # of a batch, and of its embeddings [N, D] under the weights as they are


@dataclass(frozen=True, kw_only=True)
class Term(Bounded, ABC):
    """One term, with its `weight` in the sum. Subclasses are frozen, keyword-only dataclasses of its settings."""

    name: ClassVar[str]
    weight: Annotated[float, positive("to do without, leave it out")]  # what the term is multiplied by
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @abstractmethod
    def begin(self, backbone: Backbone, received: ModelState) -> Value:
        """The term in one round of one client, without its weight.

        `backbone` is the network that is trained, and `received` the model that the client was sent. On a GPU the
        value is captured together with what it closes over, so nothing else that it uses may change from step to step.
        """
