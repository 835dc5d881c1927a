"""Hard negatives: what brute force in exact arithmetic chooses, and nothing else, however the work is cut."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.exact import unit_on_grid
from personae.errors import Diverged
from personae.parts import hard_negatives
from personae.parts.hard_negatives import HardNegatives, error_of


def crowd(seed: int, count: int, width: int = 32) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def brute_force(public: Tensor, local: Tensor, threshold: float) -> Tensor:
    return ((unit_on_grid(public) @ unit_on_grid(local).T) > threshold).any(1)


@pytest.mark.parametrize("screen", ["float32", "bfloat16"])
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.2, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("block", [1, 7, 64, 1024])
def test_it_chooses_what_brute_force_does(screen, threshold: float, block: int, monkeypatch: pytest.MonkeyPatch):
    public, local = crowd(0, 150), crowd(1, 41)
    monkeypatch.setattr(hard_negatives, "IN_CACHE", block)
    found = HardNegatives(local, threshold, screen).among(public)
    assert torch.equal(found, brute_force(public, local, threshold))
    if threshold in (0.2, 0.4):
        assert 0 < int(found.sum()) < len(public)


@pytest.mark.parametrize("screen", ["float32", "bfloat16"])
def test_thresholds_on_and_beside_a_score_are_decided_exactly(screen):
    """The threshold is a score itself, or its neighbour among all numbers: strictly above it, and nothing else."""
    public, local = crowd(2, 60, 512), crowd(3, 30, 512)
    scores = (unit_on_grid(public) @ unit_on_grid(local).T).amax(1).numpy()
    for score in scores[:20]:
        for threshold in (score, np.nextafter(score, 2), np.nextafter(score, -2)):
            found = HardNegatives(local, float(threshold), screen).among(public).numpy()
            assert np.array_equal(found, scores > threshold)


def test_an_exact_score_is_the_sum_that_fractions_give():
    """What brute force above relies on: on the grid, float64 makes no error at all."""
    public, local = unit_on_grid(crowd(4, 3)), unit_on_grid(crowd(5, 3))
    for row in public:
        for other in local:
            exactly = sum(Fraction(a) * Fraction(b) for a, b in zip(row.tolist(), other.tolist(), strict=True))
            assert Fraction(float(row @ other)) == exactly


@pytest.mark.parametrize("width", [8, 512])
@pytest.mark.parametrize(("arithmetic", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_error_bound_is_kept_by_the_worst_that_could_be_found(arithmetic, dtype: torch.dtype, width: int):
    """Random rows, and rows whose components all round the same way."""
    ones = torch.full((64, width), 1.0) * (1 + torch.linspace(0, 2**-6, 64)[:, None])
    lopsided = torch.cat([ones, crowd(8, 64, width).abs() + 0.1])
    lopsided[:64, 0] += 0.5
    for public, local in ((crowd(6, 128, width), crowd(7, 128, width)), (lopsided, lopsided.flip(0))):
        exact = unit_on_grid(public) @ unit_on_grid(local).T
        fast = F.normalize(public).to(dtype) @ unit_on_grid(local).to(dtype).T
        worst = float((fast.double() - exact).abs().max())
        assert 0 < worst <= error_of(arithmetic, width)
    if arithmetic == "bfloat16":
        assert worst > error_of(arithmetic, width) / 30  # the bound is no astronomical number


def test_only_rows_near_the_threshold_are_scored_exactly(monkeypatch: pytest.MonkeyPatch):
    public, local = crowd(9, 500, 512), crowd(10, 50, 512)
    looked_at = []
    exactly = hard_negatives.unit_on_grid
    chooser = HardNegatives(local, 0.12)
    monkeypatch.setattr(hard_negatives, "unit_on_grid", lambda rows: looked_at.append(len(rows)) or exactly(rows))
    assert 0 < int(chooser.among(public).sum()) < len(public)
    assert sum(looked_at) <= 5


def test_lengths_do_not_matter_and_nothing_is_chosen_of_nothing():
    public, local = crowd(11, 40), crowd(12, 10)
    alike = HardNegatives(local, 0.3).among(public)
    assert torch.equal(HardNegatives(7 * local, 0.3).among(0.01 * public), alike)
    assert HardNegatives(local, 0.3).among(public[:0]).shape == (0,)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(value: float):
    public, local = crowd(13, 10), crowd(14, 10)
    public[3, 2] = value
    with pytest.raises(Diverged, match="public faces are not finite"):
        HardNegatives(local, 0.3).among(public)
    with pytest.raises(Diverged):
        HardNegatives(public, 0.3)


def test_faster_arithmetic_that_a_user_allows_changes_nothing():
    public, local = crowd(15, 200, 512), crowd(16, 50, 512)
    expected = brute_force(public, local, 0.15)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(HardNegatives(local, 0.15).among(public), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
