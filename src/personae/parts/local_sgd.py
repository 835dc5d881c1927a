"""The one training loop that every algorithm uses."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from personae.core.algorithm import Client
from personae.core.backbone import Backbone
from personae.core.bounds import PositiveFloat, PositiveInt, within
from personae.core.finite import all_finite
from personae.core.samples import Samples
from personae.errors import DataError, Diverged
from personae.parts.batch_norm import batch_norms, training_mode
from personae.parts.batches import Loss, even_batches, full_batches
from personae.parts.graphs import Inputs, program_for
from personae.parts.sgd_step import Descent, SGDStep
from personae.words import counted

CHECK_EVERY = 16  # steps between looks at the loss: on a GPU each look waits for the device
AHEAD = 64  # batches that are drawn at a time, to reach a GPU in one copy


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
class LocalSGD(Descent):
    """Stochastic gradient descent with momentum and weight decay, for a budget of epochs or of iterations."""

    batch_size: PositiveInt = 32  # images in a step
    # even: the batches of an epoch are as equal as can be, and none is larger than batch_size. full: all have that
    # size, and an epoch runs over into the next; a GPU then chooses its kernels and captures its graph only once.
    batches: Literal["even", "full"] = "even"
    epochs: PositiveFloat | None = None  # passes over the data; 1 if no budget is given
    iterations: PositiveInt | None = None  # steps, whatever the size of the data
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"  # how the rate goes on after warmup
    # What one schedule spans: a client's round, or all rounds of the stage, each of which is an equal part of it. Where
    # the server trains, it spans the stage.
    span: Literal["round", "stage"] = "round"
    warmup: Annotated[float, within("[0, 1)")] = 0.0  # share of the schedule in which the rate rises from zero
    milestones: tuple[float, ...] = (0.5, 0.75)  # step: shares of the schedule at which the rate falls
    decay: Annotated[float, within("(0, 1]")] = 0.1  # step: what the rate is multiplied by there

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.iterations is not None:
            raise ValueError("give a budget in epochs or in iterations, not both")
        if not all(0 < share < 1 for share in self.milestones):
            raise ValueError("milestones are shares of the schedule, in (0, 1)")

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

        def make(tensors: Sequence[Tensor]) -> SGDStep:
            return SGDStep(self, backbone, tensors, loss, corrected=correction is not None)

        checked = 0.0
        with training_mode(backbone.module, frozen_statistics):
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
        draw = even_batches if self.batches == "even" else full_batches
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


def _require_enough(count: int, options: LocalSGD, module: nn.Module, frozen_statistics: bool) -> None:
    if not count:
        raise DataError("there is no image to train on; give every client at least one")
    batch_size = options.batch_size
    even = count // math.ceil(count / batch_size)
    smallest = even if options.batches == "even" else min(count, batch_size)  # of different images
    if smallest == 1 and not frozen_statistics and batch_norms(module):
        raise DataError(
            f"of {counted(count, 'image')} in batches of {batch_size}, one would stand alone: too few for a network "
            "with BatchNorm; merge clients, set a batch_size of at least 3, or choose a network without"
        )
