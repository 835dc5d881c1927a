"""How far the server goes towards what its clients ended with, and which of its models counts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from personae.core.bounds import Bounded, PositiveFloat, within
from personae.core.message import ServerState
from personae.core.payload import ModelState

StateT = TypeVar("StateT", bound=ServerState)

_MEAN, _WEIGHT = "mean", "weight"  # in the server's memory: of its models over rounds, and how much went into it


@dataclass(frozen=True, kw_only=True)
class ServerStep(Bounded):
    """A step of the server's own from its model theta, with any algorithm (Reddi et al., Algorithm 2).

    With d = merged - theta, the mean way of the clients in this round:

    - average: theta + lr d. At lr 1, plain federated averaging: the merged model as it is, to the bit.
    - momentum (FedAvgM): v <- beta_1 v + d, then theta + lr v.
    - adam, yogi (FedAdam, FedYogi): m <- beta_1 m + (1 - beta_1) d, then theta + lr m / (sqrt(v) + tau), where
      v <- beta_2 v + (1 - beta_2) d^2, or v - (1 - beta_2) d^2 sign(v - d^2).

    m and v begin at zero in every stage (in the paper v begins at tau^2 or above) and are not corrected for it, as
    there. Statistics of BatchNorm are no weights: they are taken over from the merged model.

    The last model of a stage may swing from round to round. With `average`, the mean of theta over rounds is what is
    evaluated and what the next stage begins with, while training goes on from theta itself: over the rounds of the
    `tail`, or over all rounds with weights that fall by `decay` with each round back. It has BatchNorm's statistics in
    it.
    """

    kind: Literal["average", "momentum", "adam", "yogi"] = "average"  # plain average, FedAvgM, FedAdam or FedYogi
    lr: PositiveFloat = 1.0  # how far it goes
    momentum: Annotated[float, within("[0, 1)")] = 0.9  # beta_1, of momentum, adam and yogi
    second: Annotated[float, within("[0, 1)")] = 0.99  # beta_2, of adam and yogi
    floor: PositiveFloat = 1e-3  # tau, of adam and yogi: the least by which a step is divided
    average: Literal["none", "exponential", "tail"] = "none"  # which mean of the models over rounds counts
    # exponential: the weight of a round relative to that of the next
    decay: Annotated[float, within("(0, 1)")] = 0.9
    tail: Annotated[float, within("(0, 1]")] = 0.25  # tail: the share of the stage's rounds, its last ones, that count
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, average in (("decay", "exponential"), ("tail", "tail")):
            if self.average != average and getattr(self, option) != getattr(ServerStep, option):
                raise ValueError(f"{option} goes with average = {average!r}; it has no effect with {self.average!r}")

    def applied(self, before: ServerState, merged: StateT, round_: int, rounds: int) -> StateT:
        """The merged state with its model moved, and what the next step has to remember."""
        moved = self._moved(before, merged)
        begun = round_ > rounds - math.ceil(self.tail * rounds - 1e-9) if self.average == "tail" else True
        if self.average == "none" or not begun:
            return moved
        model = moved.model.flat
        mean, weight = (before.memory.get(name) for name in (_MEAN, _WEIGHT))
        if mean is None or weight is None:
            mean, weight = torch.zeros_like(model), torch.zeros((), dtype=torch.float64)
        weight = (self.decay if self.average == "exponential" else 1.0) * weight + 1
        mean = torch.lerp(mean.to(model.device), model, 1 / float(weight))
        return replace(moved, memory={**moved.memory, _MEAN: mean, _WEIGHT: weight})

    def evaluated(self, state: StateT) -> StateT:
        """The state with the model that counts: what is evaluated, and what the next stage begins with."""
        mean = state.memory.get(_MEAN)
        return state if mean is None else replace(state, model=ModelState(state.model.layout, mean), memory={})

    def _moved(self, before: ServerState, merged: StateT) -> StateT:
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
        first = _recalled(memory, "first", step)
        if self.kind == "momentum":
            first = self.momentum * first + step
            return first, {"first": first}
        second = _recalled(memory, "second", step)
        first = self.momentum * first + (1 - self.momentum) * step
        square, rest = step.square(), 1 - self.second
        if self.kind == "adam":
            second = self.second * second + rest * square
        else:
            second = second - rest * square * torch.sign(second - square)
        return first / (second.sqrt() + self.floor), {"first": first, "second": second}


def _recalled(memory: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    return memory[name].to(like.device) if name in memory else torch.zeros_like(like)
