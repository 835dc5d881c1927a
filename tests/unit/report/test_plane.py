"""Axes and what is drawn between them."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.report.plane import Axis, Plane, as_number, as_percentage, even, powers, steps
from personae.report.plots import Key, Line, client_bars, curves, det_curves, roc_curves
from personae.report.wording import percent

SIZE = (400.0, 200.0)
UNIT = Axis(low=0, high=1, marks=[(0, "0"), (1, "1")])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.02, ["0%", "20%", "40%", "60%", "80%", "100%"]),
        (0.501, 0.512, ["50.2%", "50.4%", "50.6%", "50.8%", "51.0%", "51.2%"]),
        (0.49, 0.69, ["50.0%", "52.5%", "55.0%", "57.5%", "60.0%", "62.5%", "65.0%", "67.5%"]),
    ],
)
def test_marks_of_percentages(low: float, high: float, expected: list[str]):
    assert [words for _, words in even(low, high, as_percentage).marks] == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.04, 1.04, ["0", "1"]),
        (0.6, 8.4, ["1", "2", "3", "4", "5", "6", "7", "8"]),
        (0.2, 20.8, ["5", "10", "15", "20"]),
        (0.0, 22.0, ["0", "5", "10", "15", "20"]),  # no steps of 2.5
    ],
)
def test_rounds_are_whole(low: float, high: float, expected: list[str]):
    assert [words for _, words in even(low, high, as_number, whole=True).marks] == expected


def test_words_have_the_digits_that_their_step_needs():
    assert [words for _, words in even(-0.6, 0.6, as_number).marks][:4] == ["−0.6", "−0.4", "−0.2", "0.0"]
    assert [words for _, words in even(3.0, 3.00001, as_number).marks][1] == "3.000002"
    assert [words for _, words in even(0.0, 1e-5, as_number).marks][1] == "2e-06"


@given(st.floats(-1e15, 1e15), st.floats(1e-9, 1e3))
def test_marks_are_even_and_told_apart(low: float, part: float):
    high = low + part * max(1.0, abs(low))
    marks = even(low, high, as_number).marks
    values = [value for value, _ in marks]
    assert 2 <= len(marks) <= 10
    np.testing.assert_allclose(np.diff(values), values[1] - values[0], rtol=1e-3)
    assert (high - low) * -1e-6 + low <= min(values)
    assert max(values) <= high + (high - low) * 1e-6
    assert len({words for _, words in marks}) == len(marks)


@pytest.mark.parametrize(
    ("lowest", "expected"),
    [
        (0.5, ["100%", "10%"]),
        (1.7e-4, ["100%", "10%", "1%", "0.1%", "0.01%"]),
        (1e-8, ["100%", "1%", "0.01%", "0.0001%", "0.000001%"]),
    ],
)
def test_logarithmic_axes_have_marks_at_powers_of_ten(lowest: float, expected: list[str]):
    axis = powers([0.0, lowest, 1.0], percent, "")
    assert [words for _, words in axis.marks] == expected
    assert axis.share([1.0, 0.1]).tolist() == pytest.approx([1.0, 1 + 1 / round(math.log10(axis.low))])
    assert axis.share(0.0) == 0.0


def test_a_point_is_placed_between_the_axes():
    plane = Plane(SIZE, UNIT, UNIT)
    plane.dots([0.25, math.nan, 2.0], [0.5, 0.5, 0.0], 2, "red")
    found = [(float(x), float(y)) for x, y in re.findall('cx="([^"]+)" cy="([^"]+)"', plane.svg())]
    across, up = plane.right - plane.left, plane.bottom - plane.top
    expected = [(plane.left + 0.25 * across, plane.top + 0.5 * up), (plane.right, plane.bottom)]
    np.testing.assert_allclose(found, expected, atol=0.06)


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_a_line_is_interrupted_where_a_value_is_missing(gap: float):
    plane = Plane(SIZE, UNIT, UNIT)
    plane.path([0, 0.2, 0.4, 0.6, 0.8], [0.1, 0.2, gap, 0.4, 0.5], "stroke: red")
    (path,) = re.findall('<path d="([^"]*)" style="stroke: red"', plane.svg())
    assert re.sub("[^ML]", "", path) == "MLML"


def test_a_band_leaves_out_a_round_whose_value_is_missing():
    line = Line(Key("a", 0), [0, 1, 2], [0.5, math.nan, 0.5], [0.1, 0.1, 0.1])
    (band,) = re.findall('<path d="([^"]*)" style="fill: var', curves([line], "rank-1", percent=True))
    assert re.sub("[^ML]", "", band) == "MLLL"


def test_stairways():
    x, y = steps([0, 1, 3], [5, 6, 7], after=True)
    assert [*zip(x, y, strict=True)] == [(0, 5), (1, 5), (1, 6), (3, 6), (3, 7)]
    x, y = steps([0, 1, 3], [5, 6, 7], after=False)
    assert [*zip(x, y, strict=True)] == [(0, 5), (0, 6), (1, 6), (1, 7), (3, 7)]


def test_a_picture_holds_what_is_drawn_and_its_words():
    """Words are taken to be as wide as in DejaVu Sans, which is wider than most."""
    rates = np.logspace(-7, 0, 50).tolist()
    pictures = [
        curves([Line(Key("a", 0), [1, 20_000], [1e-5, 1e6])], "loss", percent=False),
        curves([Line(Key("a", 0), [0, 3], [0.999, 0.9991], [0.5, 0.5])], "rank-1", percent=True),
        roc_curves([Line(Key("a", 0), rates, rates)]),
        det_curves([Line(Key("a", 0), rates, rates[::-1])]),
        client_bars("b", ["a long name of one", "b"], {Key("a", 0): [0.5, 2.0]}),
        client_bars("b", ["人" * 18] * 40, {Key("a", 0): [0.5] * 40}),
    ]
    for svg in pictures:
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())  # type: ignore[union-attr]
        for path in re.findall(' d="([^"]+)" style="(?:fill|stroke: var)', svg):
            points = np.array(re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path), dtype=float)
            assert (points >= 0).all()
            assert (points <= (width, height)).all()
        pattern = (
            r'<text x="(\S+)" y="(\S+)"( transform[^>]*)? style="font-size: (\d+)px; text-anchor: (\w+);[^>]*>([^<]*)<'
        )
        for x, y, turned, size, anchor, words in re.findall(pattern, svg):
            long = int(size) * sum(1.0 if letter in "%人" else 0.62 for letter in words)
            before, after = (long / 2, long / 2) if anchor == "middle" else (long, 0.0)
            at = float(y) if turned else float(x)
            reach = (at - after, at + before) if turned else (at - before, at + after)
            assert min(reach) >= -1, words
            assert max(reach) <= (height if turned else width) + 1, words


def test_what_clients_are_called_stays_text():
    svg = client_bars("b", ["<b>&"], {Key("a", 0): [0.5]})
    assert "&lt;b&gt;&amp;" in svg
    assert "<b>" not in svg
