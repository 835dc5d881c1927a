"""The one training loop that every algorithm uses."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from personae.core.algorithm import Client
from personae.core.backbone import Backbone
from personae.core.finite import all_finite
from personae.core.samples import Samples
from personae.errors import DataError, Diverged
from personae.parts.graphs import Ending, Inputs, program_for
from personae.parts.images import Augmentation
from personae.words import counted

CHECK_EVERY = 16  # steps between looks at the loss: on a GPU each look waits for the device
AHEAD = 64  # batches that are drawn at a time, to reach a GPU in one copy


@dataclass(frozen=True)
class Batch:
    """What a loss sees: normalised, augmented images and their labels, on the device."""

    images: Tensor
    labels: Tensor


Loss = Callable[[Batch], Tensor]
Statistics = Literal["auto", "eval", "train"]  # of BatchNorm: kept where all faces are of one person, always, or never


def keeps_statistics(mode: Statistics, samples: Samples) -> bool:
    """Whether a client that trains on these samples leaves the statistics of BatchNorm as they came."""
    return mode == "eval" or (mode == "auto" and bool((samples.labels == samples.labels[:1]).all()))


@dataclass(frozen=True)
class Fit:
    """How training went: the mean loss over its steps, and the momentum it ended with.

    `mean_gradient` is that of the backbone's weights over the steps, where a correction was added to it.
    """

    loss: float
    steps: int
    velocity: Tensor
    mean_gradient: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Stochastic gradient descent with momentum and weight decay, for a budget of epochs or of iterations.

    `schedule`: how the rate goes on after `warmup`. `span`: what one schedule spans, a client's round, or all rounds of
    the stage, of which every round is an equal part. Where the server trains, it spans the stage.

    `batches`: even, the batches of an epoch are as equal as can be, and none is larger than `batch_size`; full, all
    have that size, and an epoch runs over into the next, so that all clients share one size, for which a GPU has to
    choose its kernels and capture its graph only once.
    """

    lr: float = 0.05  # the learning rate, or the highest of the schedule
    head_rate: float = 1.0  # of class embeddings and all else beside the backbone, as a multiple of lr
    momentum: float = 0.9  # share of the last step that goes on in the next one
    weight_decay: float = 5e-4  # how strongly all weights are drawn to zero
    batch_size: int = 32  # images in a step
    batches: Literal["even", "full"] = "even"
    epochs: float | None = None  # passes over the data; 1 if no budget is given
    iterations: int | None = None  # steps, whatever the size of the data
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    span: Literal["round", "stage"] = "round"
    warmup: float = 0.0  # share of the schedule in which the rate rises from zero
    milestones: tuple[float, ...] = (0.5, 0.75)  # step: shares of the schedule at which the rate falls
    decay: float = 0.1  # step: what the rate is multiplied by there
    clip_norm: float | None = None  # a longer gradient is shortened to this length
    prox: float = 0.0  # FedProx: how strongly the backbone is drawn to where it began
    precision: Literal["float32", "bfloat16"] = "float32"  # of the passes through the network; weights are float32
    augmentation: Augmentation = field(default_factory=Augmentation)
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.epochs is not None and self.iterations is not None:
            raise ValueError("give a budget in epochs or in iterations, not both")
        for name in ("lr", "head_rate", "batch_size", "epochs", "iterations", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, it must be positive")
        if not 0 <= self.momentum < 1 or not 0 <= self.warmup < 1:
            raise ValueError("momentum and warmup must be in [0, 1)")
        if not all(0 < share < 1 for share in self.milestones) or not 0 < self.decay <= 1:
            raise ValueError("milestones are shares of the schedule, in (0, 1), and decay is in (0, 1]")
        if not 0 <= self.weight_decay < math.inf or not 0 <= self.prox < math.inf:
            raise ValueError("weight_decay and prox must be finite and not negative")

    def steps(self, samples: int) -> int:
        """How many steps the budget buys on so many samples."""
        if self.iterations is not None:
            return self.iterations
        in_an_epoch = samples / self.batch_size
        return max(1, round((self.epochs or 1) * (math.ceil(in_an_epoch) if self.batches == "even" else in_an_epoch)))

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
            case "step":
                return self.lr * self.decay ** sum(progress >= share for share in self.milestones)
            case _:
                return self.lr

    def rate_of(self, round_: int, rounds: int) -> float:
        """The learning rate of a round as a whole: in the middle of it, where the schedule spans the stage."""
        return self.rate((round_ - 0.5) / rounds) if self.span == "stage" else self.lr

    def train(
        self,
        client: Client,
        others: Sequence[Tensor],
        samples: Samples,
        loss: Loss,
        *,
        frozen_statistics: bool = False,
    ) -> Fit:
        """A client's `fit` in one round, which goes on with what the client carries and leaves what it goes on with."""
        carried, device = client.carried, client.backbone.device
        velocity: Tensor | None = None
        if carried.velocity is not None:
            size = sum(tensor.numel() for tensor in others)
            head = carried.head_momentum
            if head is None or len(head) != size:
                head = torch.zeros(size)
            velocity = torch.cat([carried.velocity.to(device), head.to(device)])
        fit = self.fit(
            client.backbone,
            others,
            samples,
            loss,
            client.generator,
            velocity=velocity,
            correction=carried.correction,
            part=(client.round - 1, client.rounds) if self.span == "stage" else (0, 1),
            frozen_statistics=frozen_statistics,
        )
        weights = client.backbone.layout.trainable_size
        carried.velocity, carried.head_momentum = fit.velocity[:weights], fit.velocity[weights:]
        carried.mean_gradient = fit.mean_gradient
        return fit

    def fit(
        self,
        backbone: Backbone,
        others: Sequence[Tensor],
        samples: Samples,
        loss: Loss,
        generator: torch.Generator,
        *,
        velocity: Tensor | None = None,
        correction: Tensor | None = None,
        part: tuple[int, int] = (0, 1),
        frozen_statistics: bool = False,
    ) -> Fit:
        """Train the backbone and the `others` (class embeddings, say) in place.

        `velocity` is the momentum to go on with (none: from rest). `correction` is added to the gradient of the
        backbone's weights at every step; `Fit.mean_gradient` is then the mean of what it was added to. `part` (i, n)
        says that this is the i-th of n equal parts of one schedule. With `frozen_statistics`, BatchNorm normalises by
        the statistics that it came with and leaves them as they are; its scale and shift are trained all the same.

        A loss is a function of the batch and of what it closes over. On a GPU it is captured together with that, so
        nothing else that it uses may change from step to step.
        """
        _require_enough(len(samples), self, backbone.module, frozen_statistics)
        steps = self.steps(len(samples))
        batches = self._loaded(samples, steps, backbone, generator)
        first = next(batches)

        def make(tensors: Sequence[Tensor]) -> _Step:
            return _Step(self, backbone, tensors, loss, corrected=correction is not None)

        checked = 0.0
        with _training(backbone.module, frozen_statistics):
            options = self, frozen_statistics, correction is not None
            program = program_for(backbone, loss, others, make, options, samples.classes, first)
            run = program or make(others)
            with run.fitting(loss, others, velocity, correction) as ending:
                for step, inputs in enumerate(chain([first], batches)):
                    run(*inputs, self.rate((part[0] + step / steps) / part[1]))
                    if step % CHECK_EVERY == CHECK_EVERY - 1 or step == steps - 1:
                        checked = float(run.total)
                        if not math.isfinite(checked):
                            raise Diverged(f"the loss is {checked} after {counted(step + 1, 'step')}; {self._advice}")
                velocity, path = ending()
        if not all_finite(backbone.flat):
            raise Diverged(f"the weights are not finite after {counted(steps, 'step')}; {self._advice}")
        for tensor in others:
            tensor.requires_grad_(False)
        return Fit(checked / steps, steps, velocity, None if path is None else path / steps)

    def _loaded(self, samples: Samples, steps: int, backbone: Backbone, generator: torch.Generator) -> Iterator[Inputs]:
        """Images as bytes, their labels and how they vary, on the device, batch after batch."""
        device = backbone.device
        place = device if backbone.acceleration.resident else torch.device("cpu")
        draw = _even_batches if self.batches == "even" else _full_batches
        batches = islice(draw(len(samples), self.batch_size, generator), steps)
        while ahead := [(batch, self.augmentation.draw(len(batch), generator)) for batch in islice(batches, AHEAD)]:
            sizes = [len(batch) for batch, _ in ahead]
            positions, drawn = (torch.cat(column) for column in zip(*ahead, strict=True))
            columns = positions.to(place), samples.labels[positions].to(device), drawn.to(device)
            for which, labels, variation in zip(*(column.split(sizes) for column in columns), strict=True):  # type: ignore[no-untyped-call]
                yield samples.images(which).to(device), labels, variation

    @property
    def _advice(self) -> str:
        return f"lower lr (now {self.lr}) or set clip_norm"


class _Step:
    """Moves the backbone and other tensors by one batch: momentum SGD, with all momenta in one vector."""

    def __init__(
        self, options: LocalSGD, backbone: Backbone, others: Sequence[Tensor], loss: Loss, *, corrected: bool = False
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
        self.anchor = backbone.weights.clone() if options.prox else None
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
        if self.anchor is not None:
            self.backbone.gradient.add_(self.backbone.weights - self.anchor, alpha=options.prox)
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
            if isinstance(rate, Tensor):  # a captured step reads it anew at each replay
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


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def _require_enough(count: int, options: LocalSGD, module: nn.Module, frozen_statistics: bool) -> None:
    if not count:
        raise DataError("there is no image to train on; give every client at least one")
    batch_size = options.batch_size
    even = count // math.ceil(count / batch_size)
    smallest = even if options.batches == "even" else min(count, batch_size)  # of different images
    if smallest == 1 and not frozen_statistics and _batch_norms(module):
        raise DataError(
            f"of {counted(count, 'image')} in batches of {batch_size}, one would stand alone: too few for a network "
            "with BatchNorm; merge clients, set a batch_size of at least 3, or choose a network without"
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


def _even_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled positions in batches, epoch after epoch.

    The batches of an epoch are as equal as can be: a last batch of one image would have no variance to normalise by.
    """
    parts = math.ceil(count / size)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.tensor_split(parts)


def _full_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled positions, epoch after epoch, in batches of one size that go over the end of an epoch.

    An image is seen twice in a batch where that happens, and as often as it takes where there are fewer than `size`.
    """
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=generator)])
        yield left[:size]
        left = left[size:]
