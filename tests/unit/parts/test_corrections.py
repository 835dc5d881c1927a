"""The regularisers against autograd over the whole C x C matrix, gradcheck, and loops in numpy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from personae.parts.corrections import Slope, cosine_regulariser, softmax_regulariser, spreadout, stacked
from personae.parts.margins import Margin

SIZES = (3, 1, 4, 2, 1)
FORMS = {
    "softmax": (Margin(kind="softmax"), None),
    "softmax on the sphere": (Margin(kind="softmax", scale=5.0), True),
    "cosface": (Margin(kind="cosface", scale=6.0, margin=0.35), None),
    "cosface, inner products": (Margin(kind="cosface", scale=6.0, margin=0.35), False),
    "arcface": (Margin(kind="arcface", scale=6.0, margin=0.5), None),
}
each_form = pytest.mark.parametrize(("margin", "normalise"), FORMS.values(), ids=FORMS)
each_reduction = pytest.mark.parametrize("reduction", ["sum", "mean"])
each_block = pytest.mark.parametrize("block", [1, 3, 4, 11, 100])


def crowd(seed: int = 0, sizes: tuple[int, ...] = SIZES, width: int = 5) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return stacked([1.3 * torch.randn(size, width, generator=source, dtype=torch.float64) for size in sizes])


# ------------------------------------------------------------------------------------ the formulas, over all pairs


def naive_softmax(live: Tensor, fixed: Tensor, owners: Tensor, margin: Margin, normalise: bool | None) -> Tensor:
    """Eq. 5 with W and W' apart; the margin lowers the logit of a class with itself."""
    on_sphere = margin.kind != "softmax" if normalise is None else normalise
    z = fixed @ live.T
    if on_sphere:
        lowered = {"softmax": 0.0, "cosface": margin.margin, "arcface": 1 - math.cos(margin.margin)}[margin.kind]
        z = margin.scale * (F.normalize(fixed) @ F.normalize(live).T - lowered * torch.eye(len(live), dtype=live.dtype))
    same, itself = owners[:, None] == owners, torch.eye(len(live), dtype=torch.bool)
    return F.cross_entropy(z.masked_fill(same & ~itself, -math.inf), torch.arange(len(live)), reduction="sum")


def naive_cosine(live: Tensor, fixed: Tensor, owners: Tensor, normalise: bool) -> Tensor:
    if normalise:
        live, fixed = F.normalize(live), F.normalize(fixed)
    return (fixed @ live.T)[owners[:, None] != owners].sum()


def naive_spreadout(live: Tensor, margin: float) -> Tensor:
    cosines = F.normalize(live) @ F.normalize(live).T
    return F.relu(margin - (1 - cosines))[~torch.eye(len(live), dtype=torch.bool)].square().sum()


def by_autograd(value: Callable[[Tensor], Tensor], rows: Tensor) -> Slope:
    live = rows.clone().requires_grad_()
    result = value(live)
    (gradient,) = torch.autograd.grad(result, live)
    return Slope(result.detach(), gradient)


def alike(found: Slope, expected: Slope, terms: int = 1) -> None:
    torch.testing.assert_close(found.value, expected.value / terms, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.gradient, expected.gradient / terms, rtol=1e-11, atol=1e-12)


# ------------------------------------------------------------------------------------------------ softmax regulariser


@each_form
@each_reduction
@each_block
def test_softmax_is_what_autograd_says(margin: Margin, normalise: bool | None, reduction: Any, block: int) -> None:
    rows, owners = crowd()
    found = softmax_regulariser(rows, owners, margin, normalise=normalise, reduction=reduction, block=block)
    expected = by_autograd(lambda live: naive_softmax(live, rows, owners, margin, normalise), rows)
    alike(found, expected, len(rows) if reduction == "mean" else 1)


@each_form
@pytest.mark.parametrize(("self_term", "tangential"), [(False, False), (True, True), (False, True)])
def test_other_readings_are_what_autograd_says(
    margin: Margin, normalise: bool | None, self_term: bool, tangential: bool
) -> None:
    """Without the self term z_aa is held fixed; tangential, Reg is a function of directions and lengths are held."""
    rows, owners = crowd()

    def value(live: Tensor) -> Tensor:
        moved = rows.norm(dim=1, keepdim=True) * F.normalize(live) if tangential else live
        if self_term:
            return naive_softmax(moved, rows, owners, margin, normalise)
        on_sphere = margin.kind != "softmax" if normalise is None else normalise
        if on_sphere:  # the cosine of a row with itself is at its peak: there is no self term to leave out
            return naive_softmax(moved, rows, owners, margin, normalise)
        z = rows @ moved.T
        itself = torch.eye(len(rows), dtype=torch.bool)
        z = torch.where(itself, (rows @ rows.T), z).masked_fill((owners[:, None] == owners) & ~itself, -math.inf)
        return F.cross_entropy(z, torch.arange(len(rows)), reduction="sum")

    options: Any = {"normalise": normalise, "self_term": self_term, "tangential": tangential}
    alike(softmax_regulariser(rows, owners, margin, block=4, **options), by_autograd(value, rows))


def test_a_tangential_cosine_regulariser_is_what_autograd_says() -> None:
    rows, owners = crowd()
    lengths = rows.norm(dim=1, keepdim=True)
    found = cosine_regulariser(rows, owners, Margin(kind="softmax"), tangential=True)
    alike(found, by_autograd(lambda live: naive_cosine(lengths * F.normalize(live), rows, owners, False), rows))
    assert torch.linalg.vecdot(found.gradient, rows).abs().max() < 1e-12  # nothing along a row


@pytest.mark.parametrize("form", ["cosface", "arcface"])
def test_the_margins_are_those_of_the_local_loss(form: str) -> None:
    """The regulariser is the margin loss of W' as features, each of the class that it is, less its own client's."""
    margin, _ = FORMS[form]
    rows, owners = crowd()
    logits = margin.logits(rows, rows, torch.arange(len(rows)))
    value = 0.0
    for anchor, line in enumerate(logits):
        counted = [int(b) for b in range(len(rows)) if b == anchor or owners[b] != owners[anchor]]
        value += float(torch.logsumexp(line[counted], 0) - line[anchor])
    # The margin's floor under the sine, at an angle of zero, is the square root of the machine's precision.
    assert float(softmax_regulariser(rows, owners, margin).value) == pytest.approx(value, abs=1e-5)


def test_softmax_written_out_in_numpy() -> None:
    """Eq. 5 and its gradient class by class: (p_aa - 1) w_a from a itself, p_ab w_a to each class b of the others."""
    rows, owners = crowd(3)
    w, value, gradient = rows.numpy(), 0.0, np.zeros(rows.shape)
    for a in range(len(w)):
        own = math.exp(w[a] @ w[a])
        others = {b: math.exp(w[b] @ w[a]) for b in range(len(w)) if owners[b] != owners[a]}
        total = own + sum(others.values())
        value -= math.log(own / total)
        gradient[a] += (own / total - 1) * w[a]
        for b, each in others.items():
            gradient[b] += each / total * w[a]
    found = softmax_regulariser(rows, owners, Margin(kind="softmax"), block=4)
    assert float(found.value) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-10, atol=1e-12)


class FixedSoftmax(torch.autograd.Function):
    """The regulariser as a function of W with W' held where it is, and our gradient as its backward."""

    @staticmethod
    def forward(ctx: Any, live: Tensor, fixed: Tensor, owners: Tensor, margin: Margin, normalise: bool | None):
        ctx.gradient = softmax_regulariser(fixed, owners, margin, normalise=normalise, block=4).gradient
        return naive_softmax(live, fixed, owners, margin, normalise)

    @staticmethod
    def backward(ctx: Any, slope: Tensor):
        return slope * ctx.gradient, None, None, None, None


@each_form
def test_gradcheck_of_softmax_with_the_other_side_fixed(margin: Margin, normalise: bool | None) -> None:
    rows, owners = crowd(1)
    live = rows.clone().requires_grad_()
    assert torch.autograd.gradcheck(FixedSoftmax.apply, (live, rows, owners, margin, normalise))


def test_the_other_side_of_a_pair_is_held_fixed() -> None:
    """With W' live as well, autograd says something else."""
    rows, owners = crowd()
    margin = Margin(kind="softmax")
    both = by_autograd(lambda live: naive_softmax(live, live, owners, margin, None), rows)
    assert not torch.allclose(softmax_regulariser(rows, owners, margin).gradient, both.gradient, atol=0.1)


@each_form
def test_one_client_alone_is_left_alone(margin: Margin, normalise: bool | None) -> None:
    rows, owners = crowd(sizes=(5,))
    value, gradient = softmax_regulariser(rows, owners, margin, normalise=normalise)
    assert float(value) == pytest.approx(0, abs=1e-12)
    assert gradient.abs().max() < 1e-12
    assert cosine_regulariser(rows, owners, Margin(), normalise=False, reduction="mean").gradient.abs().max() < 1e-12


def test_large_logits_do_not_overflow() -> None:
    rows, owners = crowd()
    found = softmax_regulariser(100 * rows.float(), owners, Margin(kind="softmax"))
    assert found.gradient.isfinite().all()
    assert found.value.isfinite()


# ------------------------------------------------------------------------------------------------- cosine regulariser


@pytest.mark.parametrize("normalise", [True, False])
@each_reduction
def test_cosine_is_what_autograd_says(normalise: bool, reduction: Any) -> None:
    rows, owners = crowd()
    found = cosine_regulariser(rows, owners, Margin(), normalise=normalise, reduction=reduction)
    expected = by_autograd(lambda live: naive_cosine(live, rows, owners, normalise), rows)
    alike(found, expected, int((owners[:, None] != owners).sum()) if reduction == "mean" else 1)


def test_cosine_follows_the_local_loss() -> None:
    """Inner products under softmax, directions under the margins."""
    rows, owners = crowd()
    for kind, normalise in (("softmax", False), ("cosface", True), ("arcface", True)):
        margin = Margin(kind=kind)
        asked = cosine_regulariser(rows, owners, margin, normalise=normalise)
        assert torch.equal(cosine_regulariser(rows, owners, margin).gradient, asked.gradient)


def test_cosine_written_out_in_numpy() -> None:
    """The paper's gradient: to each class the sum of the other clients' rows."""
    rows, owners = crowd(4)
    w = rows.numpy()
    expected = np.array([sum(w[a] for a in range(len(w)) if owners[a] != owners[b]) for b in range(len(w))])
    found = cosine_regulariser(rows, owners, Margin(), normalise=False)
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-12, atol=1e-13)
    assert float(found.value) == pytest.approx((w * expected).sum(), rel=1e-12)


# ---------------------------------------------------------------------------------------------------------- spreadout


@pytest.mark.parametrize("margin", [0.3, 0.7, 1.0, 1.6])
@each_reduction
@each_block
def test_spreadout_is_what_autograd_says(margin: float, reduction: Any, block: int) -> None:
    rows, _ = crowd()
    found = spreadout(rows, margin, reduction=reduction, block=block)
    expected = by_autograd(lambda live: naive_spreadout(live, margin), rows)
    alike(found, expected, len(rows) * (len(rows) - 1) if reduction == "mean" else 1)
    assert float(found.value) > 0


def test_spreadout_written_out_in_numpy() -> None:
    """Eq. 9 pair by pair, in both orders, with the slope of the cosine by the quotient rule."""
    rows, _ = crowd(5)
    w, margin, value, gradient = rows.numpy(), 0.8, 0.0, np.zeros(rows.shape)
    for c, other in np.ndindex(len(w), len(w)):
        if c == other:
            continue
        a, b = np.linalg.norm(w[c]), np.linalg.norm(w[other])
        cosine = w[c] @ w[other] / (a * b)
        excess = max(0.0, margin - (1 - cosine))
        value += excess**2
        gradient[c] += 2 * excess * (w[other] / (a * b) - cosine * w[c] / a**2)
        gradient[other] += 2 * excess * (w[c] / (a * b) - cosine * w[other] / b**2)
    found = spreadout(rows, margin, block=4)
    assert float(found.value) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-10, atol=1e-12)


class OurSpreadout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, margin: float) -> Tensor:
        value, ctx.gradient = spreadout(rows, margin, block=4)
        return value

    @staticmethod
    def backward(ctx: Any, slope: Tensor):
        return slope * ctx.gradient, None


def test_gradcheck_of_spreadout() -> None:
    rows, _ = crowd(2)
    assert torch.autograd.gradcheck(OurSpreadout.apply, (rows.requires_grad_(), 0.9))


def test_rows_far_enough_apart_are_left_alone() -> None:
    value, gradient = spreadout(torch.eye(4), 0.7)
    assert float(value) == 0
    assert not gradient.any()


# ------------------------------------------------------------------------------------------------ precision and memory


def test_float32_is_float64_to_rounding() -> None:
    rows, owners = crowd(sizes=(20, 30, 7), width=16)
    for correction in (
        lambda w: softmax_regulariser(w, owners, Margin(kind="cosface", scale=30.0, margin=0.4)),
        lambda w: cosine_regulariser(w, owners, Margin(), normalise=True),
        lambda w: spreadout(w, 0.9),
    ):
        exact, single = correction(rows), correction(rows.float())
        assert single.gradient.dtype == torch.float32
        scale = float(exact.gradient.abs().max())
        assert float((single.gradient - exact.gradient).abs().max()) < 1e-5 * scale
        assert float(single.value) == pytest.approx(float(exact.value), rel=1e-5)


def test_no_array_of_classes_by_classes_is_ever_made() -> None:
    """The largest array that torch makes on the way is a block of similarities or the rows themselves."""
    rows, owners = crowd(sizes=(40,) * 10, width=8)
    for correction in (
        lambda: softmax_regulariser(rows, owners, Margin(), block=16),
        lambda: cosine_regulariser(rows, owners, Margin(), normalise=True),
        lambda: spreadout(rows, 0.9, block=16),
    ):
        with Sizes() as made:
            correction()
        assert made.largest <= max(16 * 400, rows.numel())


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the number of elements of the largest tensor that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result
