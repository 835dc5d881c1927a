"""A network whose weights live in one flat vector: to swap a model is one copy, to average models one pass."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from personae.core.acceleration import Acceleration
from personae.core.layout import Layout
from personae.core.payload import ModelState
from personae.core.prelu import accelerate


class Backbone:
    """A module bound to a flat vector of weights and a flat vector of gradients; it gives vectors of size `width`."""

    def __init__(
        self,
        module: nn.Module,
        width: int,
        device: torch.device | str = "cpu",
        acceleration: Acceleration | None = None,
    ) -> None:
        self.width = width
        self.acceleration = acceleration or Acceleration()
        self.layout = Layout.of(module, channels_last=self.acceleration.channels_last)
        self.flat = self.layout.flatten(
            {name: entry.detach() for name, entry in module.state_dict().items() if entry.is_floating_point()}
        ).to(device)
        self.module = module.to(device)
        if self.acceleration.prelu:
            accelerate(self.module)
        self.gradient = self._bind()
        self.prepared: dict[Hashable, Any] = {}
        """What was prepared for this network alone, at the addresses of its tensors, and is used again."""
        self._counters = [(each, each.clone()) for each in self.module.buffers() if not each.is_floating_point()]

    @property
    def device(self) -> torch.device:
        return self.flat.device

    @property
    def weights(self) -> Tensor:
        """The part of the vector that an optimiser moves."""
        return self.flat[: self.layout.trainable_size]

    def state(self) -> ModelState:
        """A copy of the weights as they are."""
        return ModelState(self.layout, self.flat.clone())

    def load(self, state: ModelState) -> nn.Module:
        """Take over these weights; gives the module, ready to use, as if it had never been used before."""
        self.flat.copy_(state.flat)
        for counter, beginning in self._counters:
            counter.copy_(beginning)
        return self.module

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Whatever happens to the weights and statistics inside is undone after."""
        kept = [(tensor, tensor.clone()) for tensor in (self.flat, *(counter for counter, _ in self._counters))]
        try:
            yield
        finally:
            for tensor, value in kept:
                tensor.copy_(value)

    def _bind(self) -> Tensor:
        """Make every parameter, gradient and float buffer a view of one vector; gives the vector of gradients."""
        gradient = torch.zeros_like(self.flat)  # the tail, for what is not trained, stays unused
        slopes = self.layout.views(gradient)
        parameters = dict(self.module.named_parameters())
        owners = dict(self.module.named_modules())
        for name, view in self.layout.views(self.flat).items():
            if name not in parameters:
                owner, _, leaf = name.rpartition(".")
                owners[owner]._buffers[leaf] = view
                continue
            parameters[name].data = view
            if parameters[name].requires_grad:
                parameters[name].grad = slopes[name]
        return gradient[: self.layout.trainable_size]
