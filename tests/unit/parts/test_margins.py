import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from personae.parts.margins import Margin, positive_hinge

KINDS = [
    Margin(kind="softmax"),
    Margin(kind="cosface", scale=30.0, margin=0.35),
    Margin(kind="arcface", scale=64.0, margin=0.5),
    Margin(kind="arcface", scale=8.0, margin=0.5, straight_through=True),
]
ARCFACE = KINDS[2]

each_margin = pytest.mark.parametrize("margin", KINDS, ids=lambda m: m.kind + "-st" * m.straight_through)


def batch(dtype: torch.dtype = torch.float64, samples: int = 9, classes: int = 6, size: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = 4 * torch.randn(samples, size, generator=generator, dtype=dtype)
    rows = torch.randn(classes, size, generator=generator, dtype=dtype)
    labels = torch.randint(classes, (samples,), generator=generator)
    # Two angles where cos(θ + m) would rise again: one opposite to its class, one nearly so.
    features[0] = -2 * rows[labels[0]]
    features[1] = -rows[labels[1]] + 0.05 * features[1]
    return [features, rows, labels]


def expected_logits(margin: Margin, features: Tensor, rows: Tensor, labels: Tensor) -> npt.NDArray[np.float64]:
    """The formulas one sample and one class at a time, through the angle itself."""
    x, w = features.double().numpy(), rows.double().numpy()
    logits = np.empty((len(x), len(w)))
    for i, j in np.ndindex(logits.shape):
        inner, m, is_true = float(x[i] @ w[j]), margin.margin, j == labels[i].item()
        cosine = inner / math.sqrt(float(x[i] @ x[i]) * float(w[j] @ w[j]))
        angle = math.acos(min(1.0, max(-1.0, cosine)))
        if margin.kind == "softmax":
            logits[i, j] = inner
        elif not is_true:
            logits[i, j] = margin.scale * cosine
        elif margin.kind == "cosface":
            logits[i, j] = margin.scale * (cosine - m)
        elif angle + m <= math.pi:
            logits[i, j] = margin.scale * math.cos(angle + m)
        else:
            logits[i, j] = margin.scale * (cosine - m * math.sin(m))
    return logits


@each_margin
def test_logits_follow_the_formulas(margin: Margin) -> None:
    features, rows, labels = batch()
    np.testing.assert_allclose(
        margin.logits(features, rows, labels), expected_logits(margin, features, rows, labels), atol=1e-6
    )


@each_margin
def test_loss_is_the_mean_cross_entropy(margin: Margin) -> None:
    features, rows, labels = batch()
    logits = expected_logits(margin, features, rows, labels)
    true = logits[np.arange(len(logits)), labels.numpy()]
    peak = logits.max(axis=1)
    expected = np.mean(peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1)) - true)
    assert margin.loss(features, rows, labels).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("margin", [margin for margin in KINDS if not margin.straight_through], ids=lambda m: m.kind)
def test_gradient_is_the_exact_one(margin: Margin) -> None:
    features, rows, labels = batch()
    features, labels = features[1:], labels[1:]  # θ = π is a corner
    features.requires_grad_()
    rows.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: margin.loss(x, w, labels), (features, rows))


def slope_of_true_logit(margin: Margin, angle: float) -> float:
    """∂z_y/∂cos θ_y / s, from the gradient with respect to a unit feature: dcos/dx has length sin θ."""
    feature = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64, requires_grad=True)
    logits = margin.logits(feature, torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
    (gradient,) = torch.autograd.grad(logits.sum(), feature)
    along_the_circle = gradient @ torch.tensor([math.sin(angle), -math.cos(angle)], dtype=torch.float64)
    return along_the_circle.item() / math.sin(angle) / margin.scale


@pytest.mark.parametrize("angle", [0.05, 0.4, 1.2, 2.5])
def test_straight_through_keeps_the_value_and_leaves_the_margin_out_of_the_gradient(angle: float) -> None:
    passing = dataclasses.replace(ARCFACE, straight_through=True)
    features, rows, labels = batch()
    torch.testing.assert_close(passing.logits(features, rows, labels), ARCFACE.logits(features, rows, labels))

    exact = math.sin(angle + ARCFACE.margin) / math.sin(angle)
    assert slope_of_true_logit(ARCFACE, angle) == pytest.approx(exact)
    assert slope_of_true_logit(passing, angle) == pytest.approx(1.0)
    assert abs(exact - 1.0) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_margin
def test_gradients_are_finite_on_the_class_embedding_and_opposite_to_it(margin: Margin, dtype: torch.dtype) -> None:
    rows = torch.eye(3, dtype=dtype, requires_grad=True)
    features = torch.cat([torch.eye(3, dtype=dtype), -torch.eye(3, dtype=dtype)]).requires_grad_()
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    loss = margin.loss(features, rows, labels)
    gradients = torch.autograd.grad(loss, (features, rows))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("amount", [0.0, 0.1, 0.5, 1.0, math.pi / 2])
def test_arcface_falls_with_the_angle_all_the_way(amount: float) -> None:
    margin = Margin(kind="arcface", scale=1.0, margin=amount)
    angles = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    row = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    logits = margin.logits(features, row, torch.zeros(len(angles), dtype=torch.long)).squeeze(1)
    assert (logits.diff() < 1e-7).all()


@each_margin
def test_the_order_of_the_classes_does_not_matter(margin: Margin) -> None:
    features, rows, labels = batch()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    permuted = margin.logits(features, rows[order], order.argsort()[labels])
    torch.testing.assert_close(permuted, margin.logits(features, rows, labels)[:, order])


@each_margin
def test_private_and_public_rows_side_by_side(margin: Margin) -> None:
    features, rows, _ = batch()
    private, public = rows[:2].clone().requires_grad_(), rows[2:].clone().requires_grad_()
    in_public = torch.full((len(features),), 3)
    logits = margin.logits(features, torch.cat([private, public]), len(private) + in_public)
    torch.testing.assert_close(logits[:, 2:], margin.logits(features, public, in_public))
    gradients = torch.autograd.grad(F.cross_entropy(logits, len(private) + in_public), (private, public))
    assert all((gradient != 0).any() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_margin
def test_half_precision_features_give_float32_logits(margin: Margin, dtype: torch.dtype) -> None:
    features, rows, labels = batch(torch.float32)
    features = features.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = margin.logits(features, rows, labels)
    torch.testing.assert_close(logits, margin.logits(features.float(), rows, labels))
    logits.sum().backward()
    assert logits.dtype == torch.float32
    assert features.grad is not None
    assert features.grad.dtype == dtype


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"kind": "sphereface"}, "there are softmax, cosface, arcface"),
        ({"scale": 0.0}, "scale is 0.0, it must be"),
        ({"scale": math.inf}, "scale is inf, it must be"),
        ({"scale": math.nan}, "scale is nan, it must be"),
        ({"margin": -0.1}, "margin is -0.1, it must be"),
        ({"margin": math.nan}, "margin is nan, it must be"),
        ({"kind": "arcface", "margin": 2.0}, "at most π/2"),
        ({"kind": "cosface", "straight_through": True}, "only for arcface"),
        ({"kind": "softmax", "straight_through": True}, "only for arcface"),
    ],
)
def test_impossible_margins_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Margin(**arguments)


def test_experiment_files_are_validated() -> None:
    margins = TypeAdapter(Margin)
    assert margins.validate_python({"kind": "arcface", "scale": 64, "margin": 0.5}) == ARCFACE
    with pytest.raises(ValidationError, match=r"scale is -1\.0, it must be positive"):
        margins.validate_python({"scale": -1})
    with pytest.raises(ValidationError, match="sclae"):
        margins.validate_python({"sclae": 30})


def test_positive_hinge_written_out() -> None:
    """Eq. 7 of FedFace, one sample at a time: the cosine to its own class alone."""
    features, rows, labels = batch()
    x, w = features.numpy(), rows.numpy()
    terms = []
    for sample, label in zip(x, labels.tolist(), strict=True):
        cosine = sample @ w[label] / math.sqrt(float(sample @ sample) * float(w[label] @ w[label]))
        terms.append(max(0.0, 0.6 - cosine) ** 2)
    assert 0 < sum(term > 0 for term in terms) < len(terms)
    assert positive_hinge(features, rows, labels, 0.6).item() == pytest.approx(np.mean(terms), abs=1e-12)


def test_gradcheck_of_the_positive_hinge() -> None:
    features, rows, labels = batch()
    features.requires_grad_()
    rows.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: positive_hinge(x, w, labels, 0.6), (features, rows))


@pytest.mark.parametrize("kind", ["softmax", "cosface", "arcface"])
def test_a_row_of_zeros_is_no_class(kind):
    draw = torch.Generator().manual_seed(0)
    features, rows = torch.randn(6, 4, generator=draw), torch.randn(3, 4, generator=draw)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    margin = Margin(kind=kind)
    found = []
    for given in (rows, torch.cat([rows, torch.zeros(5, 4)])):
        trained, table = features.clone().requires_grad_(), given.clone().requires_grad_()
        loss = margin.loss(trained, table, labels)
        loss.backward()
        assert table.grad[3:].abs().sum() == 0
        found.append((loss.detach(), trained.grad, table.grad[:3]))
    for plain, padded in zip(*found, strict=True):
        assert torch.allclose(plain, padded, atol=1e-6)
