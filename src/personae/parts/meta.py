"""Model-agnostic meta-learning: gradients that look past a step of adaptation, and the training loop that takes them.

With F the loss, w all that is trained, and D, D', D'' three batches, one meta step is (Gansekoele, Hess and Bhulai)

    w~ = w - alpha grad F(w, D)                                                              (Eq. 2)
    w <- w - beta [I - alpha H] grad F(w~, D'),   H the Hessian of F(w, D'')                 (Eq. 1)
    H v ~ [grad F(w + delta v, D'') - grad F(w - delta v, D'')] / (2 delta),   v = grad F(w~, D')   (Eq. 3)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from personae.core.backbone import Backbone
from personae.core.bounds import Bounded, PositiveFloat, PositiveInt, within
from personae.core.finite import all_finite
from personae.core.samples import Samples
from personae.errors import DataError, Diverged
from personae.parts.batch_norm import batch_norms, training_mode
from personae.parts.batches import Batch
from personae.parts.graphs import tell_once
from personae.parts.images import Augmentation
from personae.parts.local_sgd import CHECK_EVERY
from personae.words import counted

Order = Literal["hessian-free", "first", "exact"]
Pass = Callable[[], Tensor]  # one forward pass: the loss on a batch, with the weights as they are at that moment


class Point:
    """Where training stands: tensors that losses are computed from, moved in place and all together.

    Gradients accumulate beside the weights, so a backbone takes part as its one flat vector.
    """

    def __init__(self, others: Sequence[Tensor], backbone: Backbone | None = None) -> None:
        for tensor in others:
            tensor.requires_grad_(True)
            tensor.grad = torch.zeros_like(tensor)
        self.weights = [tensor.detach() for tensor in others]
        self.gradients = [tensor.grad for tensor in others if tensor.grad is not None]
        self.leaves = list(others)
        if backbone is not None:
            self.weights.insert(0, backbone.weights)
            self.gradients.insert(0, backbone.gradient)
            self.leaves[:0] = [weight for weight in backbone.module.parameters() if weight.requires_grad]
        self.origin = [torch.empty_like(weight) for weight in self.weights]
        self.direction = [torch.empty_like(weight) for weight in self.weights]

    def mark(self) -> None:
        """The origin of the moves that follow. Weights alone: the statistics of BatchNorm are none of them."""
        _copy(self.origin, self.weights)

    def move(self, step: float, along: Sequence[Tensor]) -> None:
        """To origin + step * along."""
        for weight, origin, way in zip(self.weights, self.origin, along, strict=True):
            torch.add(origin, way, alpha=step, out=weight)

    def back(self) -> None:
        _copy(self.weights, self.origin)

    def differentiate(self, loss: Pass, *, onto: bool = False) -> Tensor:
        """Leave the gradient of the loss here in `gradients`, or add it to what is there; gives the loss."""
        if not onto:
            for gradient in self.gradients:
                gradient.zero_()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def differentiate_twice(self, loss: Pass) -> None:
        """From a vector in `gradients`, leave the product of the Hessian of the loss with it there."""
        vector = [leaf.grad.clone() for leaf in self.leaves if leaf.grad is not None]
        slopes = torch.autograd.grad(loss(), self.leaves, create_graph=True)
        for gradient in self.gradients:
            gradient.zero_()
        torch.autograd.backward(slopes, vector, inputs=self.leaves)


def meta_gradient(
    point: Point, passes: tuple[Pass, Pass, Pass], *, order: Order, inner_lr: float, delta: float
) -> tuple[Tensor, Tensor]:
    """Leave [I - alpha H] grad F(w~, D') in `point.direction`, and the point where it was.

    `passes` are the losses on D, D' and D''. `order`: Eq. 3 (hessian-free), no Hessian at all (first), or the Hessian
    itself by differentiating twice (exact). Gives F(w, D) and F(w~, D'): the loss before and after adaptation.
    """
    on_first, on_second, on_third = passes
    point.mark()
    before = point.differentiate(on_first)
    point.move(-inner_lr, point.gradients)
    after = point.differentiate(on_second)
    _copy(point.direction, point.gradients)
    if order == "hessian-free":
        point.move(delta, point.direction)
        point.differentiate(on_third)
        for gradient in point.gradients:
            gradient.neg_()
        point.move(-delta, point.direction)
        point.differentiate(on_third, onto=True)  # the difference of the two, with the sign turned
        for direction, difference in zip(point.direction, point.gradients, strict=True):
            direction.add_(difference, alpha=inner_lr / (2 * delta))
    point.back()
    if order == "exact":
        point.differentiate_twice(on_third)
        for direction, product in zip(point.direction, point.gradients, strict=True):
            direction.sub_(product, alpha=inner_lr)
    return before, after


@dataclass(frozen=True)
class MetaFit:
    """How training went: the mean loss over its steps before (F(w, D)) and after adaptation (F(w~, D'))."""

    loss: float
    adapted: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class MetaSGD(Bounded):
    """Meta steps: Eq. 1 over and over, over the backbone and the class embeddings alike.

    `momentum`, `sampling` and `batch_norm` are choices where the paper leaves something open.
    """

    order: Order = "hessian-free"  # of the Hessian: Eq. 3 (hessian-free), none at all (first), or as it is (exact)
    inner_lr: PositiveFloat = 0.01  # alpha, the rate of the step that adapts
    lr: PositiveFloat = 0.1  # beta, the rate of the meta step
    delta: PositiveFloat = 1e-3  # of Eq. 3: how far from w the gradients are whose difference stands for the Hessian
    # of the meta step: none in Eq. 1; the paper's Table IV lists 0.9 for "all" methods
    momentum: Annotated[float, within("[0, 1)")] = 0.0
    batch_size: PositiveInt = 64  # images in each of D, D' and D''
    iterations: PositiveInt = 50  # meta steps of a client in a round
    # disjoint: D, D' and D'' are three parts of one shuffled pass over the data and share no image ("different from D"
    # in Algorithm 1); a client with fewer images than three batches gets smaller ones. independent: each of them is
    # drawn from all images.
    sampling: Literal["disjoint", "independent"] = "disjoint"
    # all: every pass normalises by its own batch and enters the running statistics, as a plain loop would do it. first:
    # only the pass at w enters them. running: the passes at w ± delta v normalise by the running statistics, untouched;
    # H is then that of another function than the one whose gradient it multiplies. eval: every pass normalises by the
    # statistics received, which stay as they came.
    batch_norm: Literal["all", "first", "running", "eval"] = "all"
    augmentation: Augmentation = field(default_factory=Augmentation)  # how images vary at random
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def fit(
        self,
        backbone: Backbone,
        others: Sequence[Tensor],
        samples: Samples,
        loss: Callable[[Batch], Tensor],
        generator: torch.Generator,
    ) -> MetaFit:
        """Train the backbone and the `others` (class embeddings, say) in place."""
        module, device = backbone.module, backbone.device
        self._require_enough(len(samples), module)
        if device.type == "cuda" and backbone.acceleration.graphs:
            tell_once("meta steps are not captured as a CUDA graph, and slower: they move the weights between passes")
        point = Point(others, backbone)
        velocity = [torch.zeros_like(weight) for weight in point.weights]
        totals, checked = torch.zeros(2, device=device), [0.0, 0.0]

        def on(positions: Tensor, *, adapted: bool, perturbed: bool = False) -> Pass:
            """The loss on a batch, which is drawn and augmented now and may be passed more than once."""
            drawn = self.augmentation.draw(len(positions), generator).to(device)
            images = self.augmentation(samples.images(positions).to(device), drawn)
            if not backbone.acceleration.channels_last:
                images = images.contiguous()
            batch = Batch(images, samples.labels[positions].to(device))

            def forward() -> Tensor:
                with self._statistics(module, adapted, perturbed):
                    return loss(batch)

            return forward

        with training_mode(module, frozen_statistics=self.batch_norm == "eval"):
            triples = self._triples(len(samples), generator)
            for step, (first, second, third) in zip(range(self.iterations), triples, strict=False):
                passes = (on(first, adapted=False), on(second, adapted=True), on(third, adapted=True, perturbed=True))
                totals += torch.stack(
                    meta_gradient(point, passes, order=self.order, inner_lr=self.inner_lr, delta=self.delta)
                )
                for weight, speed, direction in zip(point.weights, velocity, point.direction, strict=True):
                    weight.sub_(speed.mul_(self.momentum).add_(direction), alpha=self.lr)
                if step % CHECK_EVERY == CHECK_EVERY - 1 or step == self.iterations - 1:
                    checked = totals.tolist()
                    if not all(map(math.isfinite, checked)):
                        raise Diverged(f"the loss is {sum(checked)} after {step + 1} meta steps; {self._advice}")
        if not all_finite(backbone.flat):
            raise Diverged(f"the weights are not finite after {self.iterations} meta steps; {self._advice}")
        for tensor in others:
            tensor.requires_grad_(False)
        return MetaFit(checked[0] / self.iterations, checked[1] / self.iterations, self.iterations)

    @property
    def _advice(self) -> str:
        return f"lower lr (now {self.lr}) or inner_lr (now {self.inner_lr})"

    def _statistics(self, module: nn.Module, adapted: bool, perturbed: bool) -> AbstractContextManager[None]:
        """How BatchNorm behaves in one pass."""
        if self.batch_norm == "first" and adapted:
            return _each(batch_norms(module), momentum=0.0)  # the running mean stays as it is, to the bit
        if self.batch_norm == "running" and perturbed:
            return _each(batch_norms(module), training=False)
        return nullcontext()

    def _triples(self, count: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Positions of D, D' and D'', step after step."""
        while True:
            if self.sampling == "independent":
                size = self.batch_size
                first, second, third = (torch.randperm(count, generator=generator)[:size] for _ in range(3))
                yield first, second, third
            else:
                parts = torch.randperm(count, generator=generator).tensor_split(self._parts(count))
                yield from zip(parts[::3], parts[1::3], parts[2::3], strict=True)

    def _parts(self, count: int) -> int:
        """How many batches a pass over so many images is divided into: three, or a multiple."""
        return 3 * max(1, math.ceil(count / (3 * self.batch_size)))

    def _require_enough(self, count: int, module: nn.Module) -> None:
        smallest = min(self.batch_size, count) if self.sampling == "independent" else count // self._parts(count)
        needed = 2 if batch_norms(module) and self.batch_norm != "eval" else 1
        if smallest < needed:
            raise DataError(
                f"{counted(count, 'image makes', 'images make')} batches of {smallest}, and this network needs "
                f'{needed} in each; merge clients, set a larger batch_size, or sampling = "independent"'
            )


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


@contextmanager
def _each(layers: Sequence[nn.Module], **options: Any) -> Iterator[None]:
    """These attributes inside, the former ones after."""
    before = [{name: getattr(layer, name) for name in options} for layer in layers]
    for layer in layers:
        vars(layer).update(options)
    try:
        yield
    finally:
        for layer, former in zip(layers, before, strict=True):
            vars(layer).update(former)
