"""Verdicts over seeds, against scipy's own paired test and by hand."""

import math

import pytest
import scipy.stats

from personae.reproduce.statistics import Test as SeedTest
from personae.reproduce.statistics import Verdict, together

HOLDS, FAILS, NOISE, MISSING = Verdict.HOLDS, Verdict.FAILS, Verdict.NOISE, Verdict.MISSING


def test_p_is_that_of_a_paired_test():
    one, other = (91.0, 92.5, 90.1, 91.7), (90.2, 91.9, 90.3, 90.6)
    test = SeedTest(tuple(a - b for a, b in zip(one, other, strict=True)))
    assert test.above(0.0) == pytest.approx(scipy.stats.ttest_rel(one, other, alternative="greater").pvalue)
    assert test.below(0.0) == pytest.approx(scipy.stats.ttest_rel(one, other, alternative="less").pvalue)


def test_p_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 / (1 / sqrt 3); with two degrees of freedom, in closed form."""
    t = 2 * math.sqrt(3)
    expected = 0.5 - t / (2 * math.sqrt(2 + t * t))
    assert SeedTest((1.0, 2.0, 3.0)).above(0.0) == pytest.approx(expected)
    assert SeedTest((2.0, 3.0, 4.0)).above(1.0) == pytest.approx(expected)
    assert SeedTest((-1.0, -2.0, -3.0)).below(0.0) == pytest.approx(expected)


def test_numbers_that_are_equal_but_for_rounding_are_no_reason_to_warn():
    test = SeedTest((0.1 + 0.2, 0.3))
    assert test.exceeds() is Verdict.HOLDS
    assert test.exceeds(0.5) is Verdict.FAILS


def test_the_interval_by_hand():
    """Differences 1, 2, 3 again: with two degrees of freedom the quantile is p sqrt(2 / (1 - p^2)), p = 0.95."""
    reach = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert SeedTest((1.0, 2.0, 3.0)).interval == pytest.approx((2 - reach, 2 + reach))
    assert SeedTest((1.0, 1.0)).interval == (1.0, 1.0)
    assert SeedTest((1.0,)).interval is None
    assert SeedTest((1.0, math.nan)).interval is None


@pytest.mark.parametrize(
    ("values", "bound", "verdict"),
    [
        ((1.0, 1.2, 0.9), 0.0, HOLDS),
        ((-1.0, -1.2, -0.9), 0.0, FAILS),
        ((1.0, -1.2, 0.9), 0.0, NOISE),
        ((1.0, 1.2, 0.9), 5.0, FAILS),
        ((6.0, 6.2, 5.9), 5.0, HOLDS),
        ((-0.2, 0.1, -0.1), -1.0, HOLDS),
        ((3.0,), 0.0, NOISE),  # one seed decides nothing
        ((0.0, 0.0, 0.0), 0.0, NOISE),
        ((2.0, 2.0, 2.0), 0.0, HOLDS),
        ((-2.0, -2.0, -2.0), 0.0, FAILS),
        ((1.0, math.nan, 1.1), 0.0, MISSING),
    ],
)
def test_exceeds(values: tuple[float, ...], bound: float, verdict: Verdict):
    assert SeedTest(values).exceeds(bound) is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.1, -0.2, 0.1), HOLDS),
        ((3.0, 3.2, 2.9), FAILS),
        ((-3.0, -3.2, -2.9), FAILS),
        ((0.8, 1.3, 0.7), NOISE),
        ((0.0,), NOISE),
        ((math.nan, 0.1), MISSING),
    ],
)
def test_stays_within_one(values: tuple[float, ...], verdict: Verdict):
    assert SeedTest(values).stays_within(1.0) is verdict


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, NOISE], NOISE),
        ([HOLDS, NOISE, FAILS], FAILS),
        ([FAILS, MISSING], MISSING),
    ],
)
def test_a_claim_is_as_good_as_its_weakest_part(verdicts: list[Verdict], verdict: Verdict):
    assert together(verdicts) is verdict
