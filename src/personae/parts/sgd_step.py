"""One step of training by stochastic gradient descent."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.bounds import Bounded, NonNegativeFloat, PositiveFloat, within
from personae.parts.batches import Batch, Loss
from personae.parts.graphs import Ending
from personae.parts.images import Augmentation


@dataclass(frozen=True, kw_only=True)
class Descent(Bounded):
    """Momentum SGD with weight decay: what a single step needs to know."""

    lr: PositiveFloat = 0.05  # the learning rate, or the highest of the schedule
    head_rate: PositiveFloat = 1.0  # of class embeddings and all else beside the backbone, as a multiple of lr
    momentum: Annotated[float, within("[0, 1)")] = 0.9  # share of the last step that goes on in the next one
    weight_decay: NonNegativeFloat = 5e-4  # how strongly all weights are drawn to zero
    clip_norm: PositiveFloat | None = None  # a longer gradient is shortened to this length
    precision: Literal["float32", "bfloat16"] = "float32"  # of the passes through the network; weights are float32
    augmentation: Augmentation = field(default_factory=Augmentation)  # how images vary at random
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


class SGDStep:
    """Moves the backbone and other tensors by one batch: momentum SGD, with all momenta in one vector."""

    def __init__(
        self, options: Descent, backbone: Backbone, others: Sequence[Tensor], loss: Loss, *, corrected: bool = False
    ) -> None:
        self.options, self.backbone, self.loss = options, backbone, loss
        self.pairs = [(backbone.weights, backbone.gradient), *map(_with_gradient, others)]
        self.factors = [1.0] + [options.head_rate] * len(others)
        sizes = [weights.numel() for weights, _ in self.pairs]
        self.velocity = torch.zeros(sum(sizes), device=backbone.device)
        self.momenta: list[Tensor] = [
            part.view_as(weights)
            for part, (weights, _) in zip(self.velocity.split(sizes), self.pairs, strict=True)  # type: ignore[no-untyped-call]
        ]
        self.correction = torch.zeros_like(backbone.weights) if corrected else None
        self.path = torch.zeros_like(backbone.weights) if corrected else None
        self.total = torch.zeros((), device=backbone.device)
        self.rounding = torch.finfo(getattr(torch, options.precision)).eps

    @contextmanager
    def fitting(
        self,
        loss: Loss,  # noqa: ARG002
        others: Sequence[Tensor],  # noqa: ARG002
        velocity: Tensor | None,
        correction: Tensor | None,
    ) -> Iterator[Callable[[], Ending]]:
        if velocity is not None:
            self.velocity.copy_(velocity)
        if self.correction is not None and correction is not None:
            self.correction.copy_(correction)
        yield lambda: (self.velocity, self.path)

    def __call__(self, images: Tensor, labels: Tensor, drawn: Tensor, rate: float | Tensor) -> None:
        batch = self.options.augmentation(images, drawn)
        if not self.backbone.acceleration.channels_last:
            batch = batch.contiguous()
        for _, gradient in self.pairs:
            gradient.zero_()
        with self._precision():
            value = self.loss(Batch(batch, labels))
        value.backward()  # type: ignore[no-untyped-call]
        self._descend(rate)
        self.total += value.detach()

    @torch.no_grad()
    def _descend(self, rate: float | Tensor) -> None:
        options = self.options
        if options.clip_norm is not None:
            norm = torch.stack([gradient.norm() for _, gradient in self.pairs]).norm()
            scale = (options.clip_norm / (norm + 1e-6)).clamp(max=1.0)
            for _, gradient in self.pairs:
                gradient.mul_(scale)
        for weights, gradient in self.pairs:
            gradient.add_(weights, alpha=options.weight_decay)
        if self.correction is not None and self.path is not None:
            self.path.add_(self.backbone.gradient)
            self.backbone.gradient.add_(self.correction)
        for (weights, gradient), momentum, factor in zip(self.pairs, self.momenta, self.factors, strict=True):
            momentum.mul_(options.momentum).add_(gradient)
            if isinstance(rate, Tensor):  # a captured step reads it again at each replay
                weights.addcmul_(momentum, rate, value=-factor)
            else:
                weights.add_(momentum, alpha=-factor * rate)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.options.precision == "float32":
            return nullcontext()
        return torch.autocast(self.backbone.device.type, torch.bfloat16)


def _with_gradient(tensor: Tensor) -> tuple[Tensor, Tensor]:
    tensor.requires_grad_(True)
    tensor.grad = torch.zeros_like(tensor)
    return tensor, tensor.grad
