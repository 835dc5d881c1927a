"""The one training loop that every algorithm uses."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from personae.core.backbone import Backbone
from personae.core.samples import Samples
from personae.errors import DataError, Diverged
from personae.parts.images import Augmentation

CHECK_EVERY = 16  # steps between looks at the loss: on a GPU each look waits for the device


@dataclass(frozen=True)
class Batch:
    """What a loss sees: normalised, augmented images and their labels, on the device."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Fit:
    """How training went: the mean loss over its steps, and the momentum it ended with."""

    loss: float
    steps: int
    velocity: Tensor


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Stochastic gradient descent with momentum and weight decay, for a budget of epochs or of iterations."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 32
    epochs: float | None = None  # passes over the data; 1 if no budget is given
    iterations: int | None = None  # steps, whatever the size of the data
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: float = 0.0  # share of the schedule in which the rate rises from zero
    clip_norm: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    augmentation: Augmentation = field(default_factory=Augmentation)
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.epochs is not None and self.iterations is not None:
            raise ValueError("give a budget in epochs or in iterations, not both")
        for name in ("lr", "batch_size", "epochs", "iterations", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, it must be positive")
        if not 0 <= self.momentum < 1 or self.weight_decay < 0 or not 0 <= self.warmup < 1:
            raise ValueError("momentum and warmup must be in [0, 1), and weight_decay must not be negative")

    def steps(self, samples: int) -> int:
        """How many steps the budget buys on so many samples."""
        if self.iterations is not None:
            return self.iterations
        return max(1, round((self.epochs or 1) * math.ceil(samples / self.batch_size)))

    def rate(self, progress: float) -> float:
        """The learning rate when this share of the schedule is done."""
        if progress < self.warmup:
            return self.lr * progress / self.warmup
        rest = (progress - self.warmup) / (1 - self.warmup)
        match self.schedule:
            case "cosine":
                return self.lr * 0.5 * (1 + math.cos(math.pi * rest))
            case "linear":
                return self.lr * (1 - rest)
            case _:
                return self.lr

    def fit(
        self,
        backbone: Backbone,
        others: Sequence[Tensor],
        samples: Samples,
        loss: Callable[[Batch], Tensor],
        generator: torch.Generator,
        *,
        velocity: Tensor | None = None,
        part: tuple[int, int] = (0, 1),
        frozen_statistics: bool = False,
    ) -> Fit:
        """Train the backbone and the `others` (class embeddings, say) in place.

        `velocity` is the momentum to go on with (none: from rest). `part` (i, n) says that this is the i-th of n
        equal parts of one schedule. With `frozen_statistics`, BatchNorm normalises by the statistics that it came with
        and leaves them as they are; its scale and shift are trained all the same.
        """
        device = backbone.device
        _require_enough(len(samples), self.batch_size, backbone.module, frozen_statistics)
        optimiser = _SGD([(backbone.weights, backbone.gradient), *map(_with_gradient, others)], self, velocity)
        steps = self.steps(len(samples))
        total, checked = torch.zeros((), device=device), 0.0
        with _training(backbone.module, frozen_statistics):
            for step, positions in zip(range(steps), _batches(len(samples), self.batch_size, generator), strict=False):
                images = self.augmentation(samples.images(positions).to(device), generator)
                batch = Batch(images, samples.labels[positions].to(device))
                optimiser.zero()
                with self._precision(device):
                    value = loss(batch)
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step(self.rate((part[0] + step / steps) / part[1]))
                total += value.detach()
                if step % CHECK_EVERY == CHECK_EVERY - 1 or step == steps - 1:
                    checked = float(total)
                    if not math.isfinite(checked):
                        raise Diverged(f"the loss is {checked} after {step + 1} steps; {self._advice}")
        if not backbone.flat.isfinite().all():
            raise Diverged(f"the weights are not finite after {steps} steps; {self._advice}")
        for tensor in others:
            tensor.requires_grad_(False)
        return Fit(checked / steps, steps, optimiser.velocity)

    @property
    def _advice(self) -> str:
        return f"lower lr (now {self.lr}) or set clip_norm"

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()


class _SGD:
    """Momentum SGD over a few large flat tensors, with all momenta in one vector that can be kept."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], options: LocalSGD, velocity: Tensor | None) -> None:
        self.pairs, self.options = pairs, options
        sizes = [weights.numel() for weights, _ in pairs]
        device = pairs[0][0].device
        self.velocity = torch.zeros(sum(sizes), device=device) if velocity is None else velocity.to(device, copy=True)
        self.momenta = [
            part.view_as(weights)
            for part, (weights, _) in zip(self.velocity.split(sizes), pairs, strict=True)  # type: ignore[no-untyped-call]
        ]

    def zero(self) -> None:
        for _, gradient in self.pairs:
            gradient.zero_()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        limit = self.options.clip_norm
        if limit is not None:
            norm = torch.stack([gradient.norm() for _, gradient in self.pairs]).norm()
            scale = (limit / (norm + 1e-6)).clamp(max=1.0)
            for _, gradient in self.pairs:
                gradient.mul_(scale)
        for (weights, gradient), momentum in zip(self.pairs, self.momenta, strict=True):
            gradient.add_(weights, alpha=self.options.weight_decay)
            momentum.mul_(self.options.momentum).add_(gradient)
            weights.add_(momentum, alpha=-rate)


def _with_gradient(tensor: Tensor) -> tuple[Tensor, Tensor]:
    tensor.requires_grad_(True)
    tensor.grad = torch.zeros_like(tensor)
    return tensor, tensor.grad


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def _require_enough(count: int, batch_size: int, module: nn.Module, frozen_statistics: bool) -> None:
    if not count:
        raise DataError("there is no image to train on; give every client at least one")
    smallest = count // math.ceil(count / batch_size)
    if smallest == 1 and not frozen_statistics and _batch_norms(module):
        raise DataError(
            f"of {count} images in batches of {batch_size}, one would stand alone: too few for a network with "
            "BatchNorm; merge clients, set a batch_size of at least 3, or choose a network without"
        )


@contextmanager
def _training(module: nn.Module, frozen_statistics: bool) -> Iterator[None]:
    """Training mode inside, evaluation mode after."""
    module.train()
    for layer in _batch_norms(module) if frozen_statistics else ():
        layer.eval()
    try:
        yield
    finally:
        module.eval()


def _batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled positions in batches, epoch after epoch.

    The batches of an epoch are as equal as can be: a last batch of one image would have no variance to normalise by.
    """
    parts = math.ceil(count / size)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.tensor_split(parts)
