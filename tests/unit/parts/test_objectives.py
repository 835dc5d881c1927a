"""The objectives of FedFR computed again, term by term, and their gradients."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from personae.parts.margins import Margin
from personae.parts.objectives import OneVsAll, contrastive, distillation


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def test_the_contrastive_loss_is_equation_5():
    features, near, far = (values(seed, 5, 4) for seed in range(3))
    expected = []
    for f, g, p in zip(features.numpy(), near.numpy(), far.numpy(), strict=True):
        to_global, to_previous = math.exp(cosine(f, g) / 0.5), math.exp(cosine(f, p) / 0.5)
        expected.append(-math.log(to_global / (to_global + to_previous)))
    assert float(contrastive(features, near, far, 0.5)) == pytest.approx(np.mean(expected), rel=1e-12)


def test_equal_models_make_the_contrastive_loss_a_constant_without_slope():
    """What the first round would be, were the previous model taken to be the global one."""
    features, model = values(0, 5, 4).requires_grad_(), values(1, 5, 4)
    loss = contrastive(features, model, model, 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), rel=1e-12)
    assert float(features.grad.abs().max()) < 1e-12


def test_distillation_is_the_divergence_of_the_softened_probabilities():
    student, teacher = values(0, 6, 5), values(1, 6, 5)
    for temperature in (1.0, 3.0):
        total = 0.0
        for s, t in zip(student.numpy() / temperature, teacher.numpy() / temperature, strict=True):
            p, q = np.exp(t) / np.exp(t).sum(), np.exp(s) / np.exp(s).sum()
            total += float((p * np.log(p / q)).sum())
        expected = total / 6 * temperature**2
        assert float(distillation(student, teacher, temperature)) == pytest.approx(expected, rel=1e-12)
    assert float(distillation(teacher, teacher)) == pytest.approx(0, abs=1e-12)


LABELS = [2, 0, 1, 3, 7]  # the last two are public people: no class of three


@pytest.mark.parametrize(
    ("scale", "margin", "balance", "exponent"), [(30, 0.4, 0.7, 3), (8, 0.1, 0.3, 1), (5, 0, 1, 2)]
)
def test_one_vs_all_is_equation_6(scale: float, margin: float, balance: float, exponent: float):
    features, rows, bias = values(0, 5, 4), values(1, 3, 4), values(2, 3)
    options = OneVsAll(scale=scale, margin=margin, balance=balance, exponent=exponent)
    expected = []
    for x, label in zip(features.numpy(), LABELS, strict=True):
        total = 0.0
        for j in range(3):
            g = 2 * ((cosine(x, rows[j].numpy()) + 1) / 2) ** exponent - 1
            b = float(bias[j])
            if j == label:
                total += balance / scale * math.log(1 + math.exp(-scale * (g - margin) - b))
            else:
                total += (1 - balance) / scale * math.log(1 + math.exp(scale * (g + margin) + b))
        expected.append(total)
    assert float(options.loss(features, rows, bias, torch.tensor(LABELS))) == pytest.approx(
        np.mean(expected), rel=1e-12
    )


def test_gradients_are_those_of_the_values():
    features, rows, bias = values(0, 5, 4), values(1, 3, 4), values(2, 3)
    others = values(3, 5, 4), values(4, 5, 4)
    labels = torch.tensor(LABELS)
    inputs = [each.requires_grad_() for each in (features, rows, bias)]
    assert torch.autograd.gradcheck(lambda f, r, b: OneVsAll().loss(f, r, b, labels), inputs)
    assert torch.autograd.gradcheck(lambda f: contrastive(f, *others, 0.5), [features])
    logits = values(5, 4, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: distillation(z, values(6, 4, 6), 2.0), [logits])


def test_extreme_features_keep_the_losses_finite():
    """Opposite to a classifier or on it, under scales that overflow an exponential of float32."""
    rows = torch.eye(3)
    features = torch.cat([rows, -rows]).mul(1e4).requires_grad_()
    labels = torch.tensor([0, 1, 2, 0, 1, 9])
    loss = OneVsAll(scale=500.0).loss(features, rows, torch.zeros(3), labels)
    loss.backward()
    assert loss.isfinite()
    assert features.grad.isfinite().all()


def test_half_precision_features_are_compared_in_float32():
    features, rows = values(0, 5, 4).bfloat16(), values(1, 3, 4).float()
    loss = OneVsAll().loss(features, rows, torch.zeros(3), torch.tensor(LABELS))
    assert loss.dtype == torch.float32
    assert contrastive(features, features, features, 0.5).dtype == torch.float32


@pytest.mark.parametrize(
    "wrong", [{"scale": 0.0}, {"scale": math.inf}, {"margin": -0.1}, {"balance": 1.1}, {"exponent": 0.0}]
)
def test_options_without_meaning_are_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match="must be"):
        OneVsAll(**wrong)


def test_rows_of_zeros_are_no_class():
    """A person without training faces begins as such a row, and so does padding: it must neither count nor move."""
    features, rows, bias = values(0, 5, 4), values(1, 3, 4), values(2, 3)
    labels = torch.tensor(LABELS)
    padded = torch.cat([rows, torch.zeros(2, 4)]).requires_grad_()
    loss = OneVsAll().loss(features, padded, torch.cat([bias, torch.zeros(2)]), labels)
    loss.backward()
    plain = OneVsAll().loss(features, rows, bias, torch.where(labels < 3, labels, 99))
    assert loss.item() == pytest.approx(plain.item(), rel=1e-12)
    assert not padded.grad[3:].any()
    assert padded.grad[:3].any()


@pytest.mark.parametrize("kind", ["softmax", "cosface", "arcface"])
def test_distillation_over_rows_of_zeros_stays_finite(kind: str):
    margin = Margin(kind=kind, margin=0.2)
    features, rows = values(0, 5, 4), torch.cat([values(1, 3, 4), torch.zeros(2, 4)]).requires_grad_()
    loss = distillation(margin.plain_logits(features, rows), margin.plain_logits(values(2, 5, 4), rows.detach()), 2.0)
    loss.backward()
    only = rows.detach()[:3]
    same = distillation(margin.plain_logits(features, only), margin.plain_logits(values(2, 5, 4), only), 2.0)
    assert loss.item() == pytest.approx(same.item(), rel=1e-9)
    assert rows.grad.isfinite().all()
    assert not rows.grad[3:].any()


def test_plain_logits_are_those_without_a_margin():
    features, rows = values(0, 5, 4), values(1, 3, 4)
    for kind in ("softmax", "cosface", "arcface"):
        found = Margin(kind=kind, scale=7.0, margin=0.3).plain_logits(features, rows)
        cosines = [[cosine(f, r) for r in rows.numpy()] for f in features.numpy()]
        expected = features @ rows.T if kind == "softmax" else 7 * torch.tensor(cosines, dtype=torch.float64)
        assert torch.allclose(found, expected)
