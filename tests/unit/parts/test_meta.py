"""Meta-gradients against closed forms, against torch.func, and against a loop written out by hand."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacrev

from personae.core.backbone import Backbone
from personae.errors import DataError, Diverged
from personae.models import Network
from personae.parts.batches import Batch
from personae.parts.images import Augmentation, normalise
from personae.parts.meta import MetaSGD, Point, meta_gradient
from toys import Faces, TinyPlan, random_faces

PLAIN = Augmentation(flip=False, shift=0, colour=0.0)
ORDERS = ("hessian-free", "first", "exact")


# --------------------------------------------------------------------------------------------------- meta-gradients


def quadratic(seed: int, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """A and b of F(w) = w'Aw/2 - b'w, with grad F = Aw - b and Hessian A."""
    source = np.random.default_rng(seed)
    root = source.standard_normal((size, size))
    return root @ root.T, source.standard_normal(size)


def on(problem: tuple[np.ndarray, np.ndarray], w: torch.Tensor):
    A, b = (torch.from_numpy(part) for part in problem)
    return lambda: 0.5 * w @ A @ w - b @ w


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delta", [1e-3, 0.5])
def test_on_a_quadratic_the_answer_is_known_in_closed_form(order: str, delta: float):
    """[I - alpha A''] (A' (w - alpha (A w - b)) - b'); a central difference is exact there, whatever delta is."""
    first, second, third = quadratic(0), quadratic(1), quadratic(2)
    start = np.random.default_rng(3).standard_normal(5)
    alpha = 0.07
    adapted = start - alpha * (first[0] @ start - first[1])
    slope = second[0] @ adapted - second[1]
    expected = slope if order == "first" else slope - alpha * third[0] @ slope

    w = torch.from_numpy(start.copy())
    point = Point([w])
    passes = on(first, w), on(second, w), on(third, w)
    before, after = meta_gradient(point, passes, order=order, inner_lr=alpha, delta=delta)
    assert np.abs(point.direction[0].numpy() - expected).max() < 1e-9 * max(1, np.abs(expected).max()) / delta
    assert np.array_equal(w.detach().numpy(), start)  # back to the bit
    assert float(before) == pytest.approx(0.5 * start @ first[0] @ start - first[1] @ start, rel=1e-12)
    assert float(after) == pytest.approx(0.5 * adapted @ second[0] @ adapted - second[1] @ adapted, rel=1e-12)


class SmallNet(nn.Module):
    """Smooth, with BatchNorm, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))
        source = torch.Generator().manual_seed(4)
        self.double()
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randn(weight.shape, generator=source, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def problems(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 6, generator=source, dtype=torch.float64), torch.randint(0, 3, (8,), generator=source))
        for _ in range(count)
    ]


def by_torch_func(order: str, alpha: float) -> list[torch.Tensor]:
    """[I - alpha H] grad F(w~, D') by function transforms, with the whole Hessian as a matrix."""
    module = SmallNet()
    names, start = zip(*module.named_parameters(), strict=True)
    start = tuple(weight.detach() for weight in start)

    def loss_on(x: torch.Tensor, y: torch.Tensor):
        def loss(weights):
            # without running statistics BatchNorm normalises by the batch and has nothing to write to
            buffers = {name: None for name, _ in module.named_buffers()}
            entries = {**buffers, **dict(zip(names, weights, strict=True))}
            return F.cross_entropy(functional_call(module, entries, (x,)), y)

        return loss

    first, second, third = (loss_on(x, y) for x, y in problems())
    adapted = tuple(w - alpha * g for w, g in zip(start, grad(first)(start), strict=True))
    slope = grad(second)(adapted)
    if order == "first":
        return list(slope)
    blocks = jacrev(grad(third))(start)
    products = [
        sum(torch.tensordot(block, v, dims=v.ndim) for block, v in zip(row, slope, strict=True)) for row in blocks
    ]
    return [v - alpha * hv for v, hv in zip(slope, products, strict=True)]


def ours(order: str, alpha: float, delta: float) -> list[torch.Tensor]:
    module = SmallNet()
    point = Point(list(module.parameters()))
    passes = tuple((lambda x=x, y=y: F.cross_entropy(module(x), y)) for x, y in problems())
    meta_gradient(point, passes, order=order, inner_lr=alpha, delta=delta)
    return point.direction


def distance(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)))


@pytest.mark.parametrize("order", ["first", "exact"])
def test_first_and_second_order_agree_with_torch_func(order: str):
    assert distance(ours(order, 0.3, 1e-3), by_torch_func(order, 0.3)) < 1e-12


def test_the_hessian_free_direction_converges_to_the_exact_one_with_the_square_of_delta():
    exact, without = by_torch_func("exact", 0.3), by_torch_func("first", 0.3)
    deltas = [0.2 / 2**halving for halving in range(6)]
    errors = [distance(ours("hessian-free", 0.3, delta), exact) for delta in deltas]
    orders = [math.log2(one / next_) for one, next_ in pairwise(errors)]
    assert orders[-3:] == pytest.approx([2.0] * 3, abs=0.05)  # halving delta quarters the error
    assert distance(ours("hessian-free", 0.3, 1e-4), exact) < 1e-7 * distance(without, exact)


def test_where_activations_have_kinks_it_converges_once_no_step_crosses_one():
    """With PReLU gradients jump, and Eq. 3 divides a jump between its two points by 2 delta."""
    module = Network(name="small", embedding=8, height=32, width=32).build().double()
    source = torch.Generator().manual_seed(5)
    batches = [
        (torch.randn(8, 3, 32, 32, generator=source, dtype=torch.float64), torch.randint(0, 8, (8,), generator=source))
        for _ in range(3)
    ]
    passes = tuple((lambda x=x, y=y: F.cross_entropy(module(x), y)) for x, y in batches)
    point = Point([weight for weight in module.parameters() if weight.requires_grad])

    def hessian_term(order: str, delta: float = 1.0) -> torch.Tensor:
        found = []
        for each in (order, "first"):
            meta_gradient(point, passes, order=each, inner_lr=0.01, delta=delta)
            found.append(torch.cat([part.flatten() for part in point.direction]))
        return found[0] - found[1]

    exact = hessian_term("exact")
    assert (hessian_term("hessian-free", 1e-8) - exact).norm() < 1e-3 * exact.norm()
    assert (hessian_term("hessian-free", 1e-3) - exact).norm() > exact.norm()  # the paper's delta


def test_with_one_batch_for_all_it_is_the_gradient_of_the_adapted_loss():
    """MAML proper, D = D'': the derivative of w -> F(w - alpha grad F(w, D), D') by autograd and by gradcheck."""
    A, b = (torch.from_numpy(part) for part in quadratic(6, 4))
    targets = torch.from_numpy(np.random.default_rng(7).standard_normal(4))
    start = torch.from_numpy(np.random.default_rng(8).standard_normal(4))

    def first(w: torch.Tensor) -> torch.Tensor:
        return (A @ w - b).tanh().square().sum()

    def second(w: torch.Tensor) -> torch.Tensor:
        return (w - targets).cosh().log().sum()

    class Adapted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            ctx.save_for_backward(w)
            return second(w - 0.05 * grad(first)(w))

        @staticmethod
        def backward(ctx, slope):
            (saved,) = ctx.saved_tensors
            w = saved.detach().clone()
            with torch.enable_grad():
                point = Point([w])
                passes = (lambda: first(w)), (lambda: second(w)), (lambda: first(w))
                meta_gradient(point, passes, order="exact", inner_lr=0.05, delta=1.0)
            return slope * point.direction[0]

    w = start.clone().requires_grad_()
    assert torch.autograd.gradcheck(Adapted.apply, (w,), eps=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------- the training loop


def by_hand(
    meta: MetaSGD, module: nn.Module, rows: torch.Tensor, faces: Faces, generator: torch.Generator
) -> tuple[float, float]:
    """The same training on an ordinary module, with a Hessian by differentiating twice where it is to be exact."""
    rows.requires_grad_(True)
    leaves = [*module.parameters(), rows]
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    speed = [torch.zeros_like(leaf) for leaf in leaves]
    losses = []

    def slopes(positions: torch.Tensor, at: list[torch.Tensor], number: int, create_graph: bool = False):
        with torch.no_grad():
            for leaf, value in zip(leaves, at, strict=True):
                leaf.copy_(value)
        kept = [(layer.running_mean.clone(), layer.running_var.clone()) for layer in norms]
        if number == 2 and meta.batch_norm == "running":
            for layer in norms:
                layer.eval()
        images, labels = normalise(faces.images(positions)), faces.labels[positions]
        value = F.cross_entropy(module(images) @ F.normalize(rows).T, labels)
        found = torch.autograd.grad(value, leaves, create_graph=create_graph)
        for layer, (mean, variance) in zip(norms, kept, strict=True):
            layer.train()
            if number and meta.batch_norm == "first":
                layer.running_mean, layer.running_var = mean, variance
        losses.append((number, value.item()))
        return found

    module.train()
    pending: list[torch.Tensor] = []
    for _ in range(meta.iterations):
        if meta.sampling == "independent":
            D = [torch.randperm(len(faces), generator=generator)[: meta.batch_size] for _ in range(3)]
        else:
            if not pending:
                pending = list(torch.randperm(len(faces), generator=generator).tensor_split(meta._parts(len(faces))))
            D, pending = pending[:3], pending[3:]
        w = [leaf.detach().clone() for leaf in leaves]
        first = slopes(D[0], w, 0)
        v = slopes(D[1], [a - meta.inner_lr * b for a, b in zip(w, first, strict=True)], 1)
        if meta.order == "hessian-free":
            up = slopes(D[2], [a + meta.delta * b for a, b in zip(w, v, strict=True)], 2)
            down = slopes(D[2], [a - meta.delta * b for a, b in zip(w, v, strict=True)], 2)
            product = [(a - b) / (2 * meta.delta) for a, b in zip(up, down, strict=True)]
        elif meta.order == "exact":
            product = torch.autograd.grad(slopes(D[2], w, 2, create_graph=True), leaves, v)
        else:
            product = [torch.zeros_like(leaf) for leaf in leaves]
        with torch.no_grad():
            for leaf, a, b, hv, s in zip(leaves, w, v, product, speed, strict=True):
                s.mul_(meta.momentum).add_(b - meta.inner_lr * hv)
                leaf.copy_(a - meta.lr * s)
    means = [np.mean([value for number, value in losses if number == wanted]) for wanted in (0, 1)]
    return means[0], means[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "first"},
        {"order": "exact"},
        {"momentum": 0.9},
        {"sampling": "independent"},
        {"batch_norm": "first"},
        {"batch_norm": "running"},
        {"batch_norm": "first", "order": "exact", "momentum": 0.5, "sampling": "independent"},
    ],
)
def test_it_trains_like_a_loop_by_hand(backbone: Backbone, options):
    faces = random_faces(2, 3, 9)
    settings = {"inner_lr": 0.1, "lr": 0.1, "delta": 0.2, "batch_size": 5, "iterations": 4, "augmentation": PLAIN}
    meta = MetaSGD(**settings | options)
    module = TinyPlan().build()
    module.load_state_dict(copy.deepcopy(backbone.module.state_dict()))
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    theirs, before = rows.clone(), backbone.flat.clone()

    def loss(batch: Batch) -> torch.Tensor:
        return F.cross_entropy(backbone.module(batch.images) @ F.normalize(rows).T, batch.labels)

    fit = meta.fit(backbone, [rows], faces, loss, torch.Generator().manual_seed(9))
    expected = by_hand(meta, module, theirs, faces, torch.Generator().manual_seed(9))
    state = {name: entry for name, entry in module.state_dict().items() if entry.is_floating_point()}
    found, wanted = backbone.flat, backbone.layout.flatten(state).detach()
    # float32 in another order of summation; a wrong sign or a missing term is off by 1e-2 and more
    assert (found - before).abs().max() > 1e-2
    assert torch.allclose(found, wanted, rtol=5e-5, atol=2e-5)
    assert torch.allclose(rows, theirs.detach(), rtol=5e-5, atol=2e-5)
    assert (fit.loss, fit.adapted) == pytest.approx(expected, rel=2e-5)
    assert fit.steps == 4
    assert not rows.requires_grad
    assert not any(part.training for part in backbone.module.modules())
    assert all(layer.momentum == 0.1 for layer in backbone.module.modules() if isinstance(layer, nn.BatchNorm2d))


@pytest.mark.parametrize("batch_norm", ["all", "first", "running"])
def test_the_statistics_of_batch_norm_are_never_frozen_by_accident(backbone: Backbone, batch_norm: str):
    before = {name: view.clone() for name, view in backbone.layout.views(backbone.flat).items()}
    rows = torch.randn(3, 8)
    MetaSGD(batch_size=4, iterations=2, batch_norm=batch_norm).fit(
        backbone,
        [rows],
        random_faces(2, 3, 5),
        lambda batch: F.cross_entropy(backbone.module(batch.images) @ rows.T, batch.labels),
        torch.Generator().manual_seed(0),
    )
    after = backbone.layout.views(backbone.flat)
    statistics = [name for name in after if "running" in name]
    assert len(statistics) == 4
    assert not any(torch.equal(after[name], before[name]) for name in statistics)


@pytest.mark.parametrize("count", [6, 7, 20, 48, 50, 193])
def test_three_batches_share_no_image_and_a_pass_leaves_none_out(count: int):
    meta = MetaSGD(batch_size=16)
    stream = meta._triples(count, torch.Generator().manual_seed(0))
    for _ in range(2):
        shown = [next(stream) for _ in range(meta._parts(count) // 3)]
        assert sorted(torch.cat([part for triple in shown for part in triple]).tolist()) == list(range(count))
        sizes = {len(part) for triple in shown for part in triple}
        assert max(sizes) <= 16
        assert max(sizes) - min(sizes) <= 1


def test_independent_batches_are_drawn_from_all_images():
    meta = MetaSGD(batch_size=16, sampling="independent")
    first, second, third = next(meta._triples(20, torch.Generator().manual_seed(0)))
    assert {len(first), len(second), len(third)} == {16}
    assert all(len(set(part.tolist())) == 16 for part in (first, second, third))
    assert set(first.tolist()) & set(second.tolist())


def test_too_few_images_are_told(backbone: Backbone):
    faces = random_faces(2, 3, 5)

    def fit(count: int, **options) -> None:
        few = Faces(faces.pixels[:count], faces.labels[:count], faces.classes)
        rows = torch.randn(3, 8)
        MetaSGD(iterations=1, **options).fit(
            backbone,
            [rows],
            few,
            lambda batch: F.cross_entropy(backbone.module(batch.images) @ rows.T, batch.labels),
            torch.Generator().manual_seed(0),
        )

    for count in (0, 5):
        with pytest.raises(DataError, match=f"^{count} images make batches of {count // 3}, and this network needs 2"):
            fit(count)
    fit(6)
    fit(2, sampling="independent")
    with pytest.raises(DataError, match="batches of 1"):
        fit(15, batch_size=1)


def test_a_loss_that_is_not_finite_is_told_with_advice(backbone: Backbone):
    with pytest.raises(Diverged, match=r"after 16 meta steps; lower lr \(now 0.1\) or inner_lr \(now 0.01\)"):
        MetaSGD(batch_size=4).fit(
            backbone,
            [],
            random_faces(2, 3, 5),
            lambda batch: backbone.module(batch.images).mean() * math.nan,
            torch.Generator().manual_seed(0),
        )
    assert not backbone.module.training


@pytest.mark.parametrize("wrong", [{"inner_lr": 0}, {"lr": -1}, {"delta": math.inf}, {"iterations": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .* must be (positive|at least 1)"):
        MetaSGD(**wrong)


def test_momentum_is_a_share():
    with pytest.raises(ValueError, match=r"momentum is 1\.0, it must be in"):
        MetaSGD(momentum=1.0)
