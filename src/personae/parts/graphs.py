"""Training steps as CUDA graphs: captured once, then replayed for client after client.

All that a step launches can be recorded and launched again as a whole, if the tensors it works on stay where they are.
Those of the backbone do. Those that a loss closes over (class embeddings, say) are moved to places that last, for the
time of a fit. Two fits share a program if their losses are the same code over equal values, the same networks, and
tensors of the same shapes; class embeddings are filled up with rows of zeros, which no loss counts as a class, so that
clients with different numbers of identities share one too.

What cannot be captured is trained step by step as everywhere else, and a line says so.
"""

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from personae.core.backbone import Backbone

PATIENCE = 2  # steps of one batch size that run one by one first: libraries choose kernels, and rare sizes stay so
NARROWEST = 8  # rows that class embeddings are filled up to at least; above it, to a power of two
_AGREEMENT = 1e-3  # relative; padded and plain losses differ by the order of sums alone
_ROUNDINGS = 16  # by which gradients may differ besides: each layer on the way back rounds what another order gave it

_log = logging.getLogger("personae")
_launching = threading.Lock()  # single kernels of one client would wait in line behind the graphs of all the others
_single = ThreadPoolExecutor(1, "single-steps")  # libraries choose kernels again in every thread, which takes seconds


class Step(Protocol):
    """One step of training over tensors that stay where they are."""

    loss: Any  # Batch -> Tensor
    pairs: list[tuple[Tensor, Tensor]]  # what it moves, and the gradients
    momenta: list[Tensor]
    correction: Tensor | None  # what is added to the gradient of its weights
    path: Tensor | None  # the sum of these gradients so far, without it
    total: Tensor  # of the losses so far
    rounding: float  # of its arithmetic, relative

    def __call__(self, images: Tensor, labels: Tensor, drawn: Tensor, rate: float | Tensor) -> None: ...


Inputs = tuple[Tensor, Tensor, Tensor]
Ending = tuple[Tensor, Tensor | None]  # all momenta as one vector, and `path`
MakeStep = Callable[[Sequence[Tensor]], Step]


class Uncapturable(Exception):
    """Says why a loss cannot be captured."""


def program_for(
    backbone: Backbone,
    loss: Callable[[Any], Tensor],
    others: Sequence[Tensor],
    make: MakeStep,
    options: Hashable,
    classes: int,
    trial: Inputs,
) -> "Program | None":
    """The program of this kind of fit, new or used before; None where training goes step by step.

    `make` gives a step that moves the backbone and the tensors it is given in the place of the `others`; `options` is
    whatever else two fits must have in common. `trial` is a batch on which padding is tried before it is trusted.
    """
    if backbone.device.type != "cuda" or not backbone.acceleration.graphs:
        return None
    contents = _Contents(backbone, others)
    try:
        code = contents.read("loss", loss)
    except Uncapturable as reason:
        tell_once(f"training is not captured as a CUDA graph, and slower: {reason}")
        return None
    shapes = [_padded(tensor.shape, classes) for tensor in contents.tensors]
    exact = [tensor.shape for tensor in contents.tensors]
    if shapes != exact and backbone.acceleration.padding:
        fits = backbone.prepared.setdefault(("padding", code, options), None)
        if fits is None:
            fits = _padding_agrees(backbone, loss, contents.tensors, len(others), shapes, make, trial)
            backbone.prepared["padding", code, options] = fits
            if not fits:
                tell_once("this loss counts rows of zeros: clients share no graph across numbers of classes")
        shapes = shapes if fits else exact
    else:
        shapes = exact
    key = ("program", code, options, tuple(shapes))
    if key not in backbone.prepared:
        backbone.prepared[key] = Program(backbone, contents, others, shapes, make)
    program: Program = backbone.prepared[key]
    return program


class Program:
    """One kind of fit: its tensors at places that last, and a graph for each size of batch."""

    def __init__(
        self,
        backbone: Backbone,
        contents: "_Contents",
        others: Sequence[Tensor],
        shapes: Sequence[torch.Size],
        make: MakeStep,
    ) -> None:
        self.backbone = backbone
        self.held = contents.objects  # a network is known by its address, which must not be given to another one
        self.places = [
            torch.zeros(shape, dtype=tensor.dtype, device=backbone.device)
            for shape, tensor in zip(shapes, contents.tensors, strict=True)
        ]
        self.step = make(self.places[: len(others)])
        self.rate = torch.zeros((), device=backbone.device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Inputs] | None] = {}
        self.seen: Counter[int] = Counter()
        if "memory" not in backbone.prepared:
            backbone.prepared["memory"] = torch.cuda.graph_pool_handle(), torch.cuda.Stream(backbone.device)  # type: ignore[no-untyped-call]
        self.pool, self.side = backbone.prepared["memory"]

    @property
    def total(self) -> Tensor:
        return self.step.total

    @contextmanager
    def fitting(
        self,
        loss: Callable[[Any], Tensor],
        others: Sequence[Tensor],
        velocity: Tensor | None,
        correction: Tensor | None,
    ) -> Iterator[Callable[[], Ending]]:
        """Inside, the tensors of this loss are at the program's places. Gives a function for how it ends."""
        contents = _Contents(self.backbone, others)
        contents.read("loss", loss)
        parts = [_part(momentum, other) for momentum, other in zip(self.step.momenta[1:], others, strict=True)]
        current = torch.cuda.current_stream(self.backbone.device)
        default = torch.cuda.default_stream(self.backbone.device)
        stream = self.side if current == default else current  # nothing can be captured on the default stream
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._begin(loss, velocity, correction, parts)
            with _moved(contents.tensors, self.places, len(others)):
                yield lambda: (
                    torch.cat([self.step.momenta[0], *(part.flatten() for part in parts)]),
                    self.step.path,
                )
        current.wait_stream(stream)

    def __call__(self, images: Tensor, labels: Tensor, drawn: Tensor, rate: float) -> None:
        count = len(labels)
        self.rate.fill_(rate)
        if count not in self.graphs:
            self.seen[count] += 1
            if self.seen[count] > PATIENCE:
                self.graphs[count] = self._capture((images, labels, drawn))
        captured = self.graphs.get(count)
        if captured is None:
            _elsewhere(lambda: self.step(images, labels, drawn, self.rate))
            return
        graph, places = captured
        with _launching:
            for place, given in zip(places, (images, labels, drawn), strict=True):
                place.copy_(given)
            graph.replay()

    def _begin(
        self, loss: Callable[[Any], Tensor], velocity: Tensor | None, correction: Tensor | None, parts: Sequence[Tensor]
    ) -> None:
        self.step.loss = loss
        self.step.total.zero_()
        for momentum in self.step.momenta:
            momentum.zero_()
        if velocity is not None:
            targets = [self.step.momenta[0], *parts]
            given = velocity.to(self.backbone.device).split([part.numel() for part in targets])  # type: ignore[no-untyped-call]
            for target, part in zip(targets, given, strict=True):
                target.copy_(part.view_as(target))
        if self.step.correction is not None and self.step.path is not None and correction is not None:
            self.step.correction.copy_(correction)
            self.step.path.zero_()

    def _capture(self, inputs: Inputs) -> tuple[torch.cuda.CUDAGraph, Inputs] | None:
        images, labels, drawn = (tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()

        def record() -> None:
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                self.step(images, labels, drawn, self.rate)
            finally:
                graph.capture_end()

        try:
            _elsewhere(record)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            tell_once(f"training is not captured as a CUDA graph, and slower: {reason}")
            return None
        return graph, (images, labels, drawn)


class _Contents:
    """What a loss closes over: values to compare, tensors to move, and networks that are known by their address."""

    def __init__(self, backbone: Backbone, others: Sequence[Tensor]) -> None:
        self.backbone = backbone
        self.tensors: list[Tensor] = list(others)
        self.objects: list[object] = []

    def read(self, name: str, value: Any) -> Hashable:
        """Something that is equal for two values if and only if a captured loss may hold either of them."""
        if isinstance(value, Tensor):
            return self._tensor(name, value)
        if isinstance(value, nn.Module | Backbone):
            self.objects.append(value)
            return type(value), id(value)
        if isinstance(value, FunctionType):
            code, defaults = value.__code__, value.__defaults__ or ()
            held = dict(zip(code.co_freevars, (cell.cell_contents for cell in value.__closure__ or ()), strict=True))
            held |= zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
            return code, *(self.read(each, content) for each, content in held.items())
        if isinstance(value, MethodType):
            return self.read(name, value.__func__), self.read(name, value.__self__)
        if isinstance(value, tuple):
            return tuple(self.read(name, item) for item in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return type(value), *(self.read(each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device | type):
            return type(value), value
        raise Uncapturable(f"its loss uses {name}, a {type(value).__name__} that may change from step to step")

    def _tensor(self, name: str, tensor: Tensor) -> Hashable:
        for position, known in enumerate(self.tensors):
            if tensor is known:
                return "tensor", position
        storage = tensor.untyped_storage().data_ptr()
        own = (self.backbone.flat, self.backbone.gradient)
        if any(storage == each.untyped_storage().data_ptr() for each in own):
            return "own", tensor.storage_offset(), tensor.shape, tensor.stride()
        if tensor.device != self.backbone.device or not tensor.is_leaf:
            raise Uncapturable(f"its loss uses {name}, a tensor of another device or the result of other operations")
        self.tensors.append(tensor)
        return "tensor", len(self.tensors) - 1, tensor.dtype, tensor.requires_grad


@contextmanager
def _moved(tensors: Sequence[Tensor], places: Sequence[Tensor], trained: int) -> Iterator[None]:
    """Inside, the tensors are the places, filled with what they held; after, they hold what the places do.

    The first `trained` of them have gradients.
    """
    homes = [tensor.data for tensor in tensors]
    for position, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        place.data.zero_()
        _part(place.data, tensor).copy_(tensor.data)
        tensor.grad = None
        tensor.data = place.data
        if position < trained:
            tensor.requires_grad_(True)
            tensor.grad = place.grad
    try:
        yield
    finally:
        for tensor, place, home in zip(tensors, places, homes, strict=True):
            tensor.grad = None
            tensor.data = home.copy_(_part(place.data, home))


def _part(place: Tensor, like: Tensor) -> Tensor:
    """The place without its padding."""
    return place[: len(like)] if like.ndim else place


def _padded(shape: torch.Size, classes: int) -> torch.Size:
    if len(shape) != 2 or shape[0] != classes:
        return shape
    return torch.Size((max(NARROWEST, 1 << (classes - 1).bit_length()), shape[1]))


def _padding_agrees(
    backbone: Backbone,
    loss: Callable[[Any], Tensor],
    tensors: Sequence[Tensor],
    trained: int,
    shapes: Sequence[torch.Size],
    make: MakeStep,
    trial: Inputs,
) -> bool:
    """Whether this loss and its gradients are the same with rows of zeros added."""
    found = []
    for wanted in ([tensor.shape for tensor in tensors], shapes):
        places = [torch.zeros(shape, device=backbone.device) for shape in wanted]
        step = make(places[:trained])
        step.loss = loss
        with backbone.rehearsal(), _moved(tensors, places, trained):
            _elsewhere(partial(step, *trial, 0.0))
        slopes = [_part(slope, tensor) for (_, slope), tensor in zip(step.pairs[1:], tensors[:trained], strict=True)]
        found.append(torch.cat([step.total[None], *(each.flatten() for each in (backbone.gradient, *slopes))]))
    plain, padded = found
    agreement = max(_AGREEMENT, _ROUNDINGS * step.rounding)
    return bool(
        ((plain - padded).norm() <= agreement * plain.norm())
        & ((plain[0] - padded[0]).abs() <= _AGREEMENT * plain[0].abs())
    )


def _elsewhere(work: Callable[[], None]) -> None:
    """Do it in the one thread for single steps, on the stream that is current in this one."""
    stream = torch.cuda.current_stream()

    def there() -> None:
        with torch.cuda.stream(stream), _launching:
            work()

    _single.submit(there).result()


@cache
def tell_once(line: str) -> None:
    """A line for whoever wonders about the speed, however many clients it is true of."""
    _log.warning(line)
