"""How far the server goes towards what its clients ended with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from personae.core.message import ServerState
from personae.core.payload import ModelState

StateT = TypeVar("StateT", bound=ServerState)


@dataclass(frozen=True, kw_only=True)
class ServerStep:
    """A step of the server's own from its model theta, with any algorithm (Reddi et al., Algorithm 2).

    With d = merged - theta, the mean way of the clients in this round:

    - average: theta + lr d. At lr 1, plain federated averaging: the merged model as it is, to the bit.
    - momentum (FedAvgM): v <- beta_1 v + d, then theta + lr v.
    - adam, yogi (FedAdam, FedYogi): m <- beta_1 m + (1 - beta_1) d, then theta + lr m / (sqrt(v) + tau), where
      v <- beta_2 v + (1 - beta_2) d^2, or v - (1 - beta_2) d^2 sign(v - d^2).

    `momentum` is beta_1, `second` beta_2, `floor` tau. m and v begin at zero in every stage (in the paper v begins at
    tau^2 or above) and are not corrected for it, as there. Statistics of BatchNorm are no weights: they are taken over
    from the merged model.
    """

    kind: Literal["average", "momentum", "adam", "yogi"] = "average"
    lr: float = 1.0
    momentum: float = 0.9
    second: float = 0.99
    floor: float = 1e-3
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf or not 0 < self.floor < math.inf:
            raise ValueError("lr and floor must be positive and finite")
        if not 0 <= self.momentum < 1 or not 0 <= self.second < 1:
            raise ValueError("momentum and second must be in [0, 1)")

    def applied(self, before: ServerState, merged: StateT) -> StateT:
        """The merged state with its model moved, and what the next step has to remember."""
        if self.kind == "average" and self.lr == 1.0:
            return merged
        weights = slice(merged.model.layout.trainable_size)
        flat = merged.model.flat.clone()
        begin = before.model.flat[weights].to(flat.device)
        way, memory = self._way(flat[weights] - begin, before.memory)
        flat[weights] = begin + self.lr * way
        return replace(merged, model=ModelState(merged.model.layout, flat), memory=memory)

    def _way(self, step: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if self.kind == "average":
            return step, {}
        first = memory["first"].to(step.device) if memory else torch.zeros_like(step)
        if self.kind == "momentum":
            first = self.momentum * first + step
            return first, {"first": first}
        second = memory["second"].to(step.device) if memory else torch.zeros_like(step)
        first = self.momentum * first + (1 - self.momentum) * step
        square, rest = step.square(), 1 - self.second
        if self.kind == "adam":
            second = self.second * second + rest * square
        else:
            second = second - rest * square * torch.sign(second - square)
        return first / (second.sqrt() + self.floor), {"first": first, "second": second}
