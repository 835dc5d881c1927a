"""Arrays in half the bytes: how far rounding moves them, and what stays exact."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from personae.algorithms.fedpe import Up
from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import Broadcast
from personae.core.payload import Count, ModelState, Scalars
from personae.core.wire import Packet, WireError
from personae.errors import ConfigError
from personae.runtime.coding import CODINGS, EXACT, coding_of

ROUNDED = {name: coding for name, coding in CODINGS.items() if coding != EXACT}
ROUNDED.pop("changed")
CHANGED = CODINGS["changed"]
HALVES = {name: coding for name, coding in ROUNDED.items() if coding.dtype != torch.int8}
EIGHT = CODINGS["delta-int8"]
numbers = st.floats(-60_000, 60_000, width=32, allow_subnormal=False)


@pytest.mark.parametrize("name", HALVES)
@given(values=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
def test_rounding_moves_a_value_by_no_more_than_is_stated(name: str, values: list[tuple[float, float]]) -> None:
    coding = HALVES[name]
    exact, base = torch.tensor(values).unbind(1)
    request, packet = Packet({"model/a": base}, {}), Packet({"model/a": exact}, {"samples/value": 3})
    sent = coding.request(request)
    assert sent.arrays["model/a"].dtype == (torch.float32 if coding.delta else coding.dtype)
    try:
        coded = coding.answer(packet, request)
    except ValueError:
        assert coding.dtype == torch.float16
        assert (exact - base).abs().max() > 60_000
        return
    assert coded.arrays["model/a"].dtype == coding.dtype
    assert coded.scalars == packet.scalars
    back = coding.restored(coded, request).arrays["model/a"]
    assert back.dtype == torch.float32
    rounded = (exact - base if coding.delta else exact).double()
    smallest = torch.finfo(coding.dtype).tiny  # below it, the error is a share of this number
    bound = coding.error * rounded.abs().clamp(min=smallest)
    sums = 2 * torch.finfo(torch.float32).eps * torch.maximum(exact.abs(), base.abs()).double() if coding.delta else 0
    assert bool(((back.double() - exact.double()).abs() <= bound + sums).all())


@given(values=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), copies=st.integers(1, 300))
def test_eight_bits_move_a_value_by_no_more_than_a_share_of_the_largest_in_its_block(
    values: list[tuple[float, float]], copies: int
) -> None:
    """Blocks are found here by counting, and steps one by one."""
    exact, base = torch.tensor(values * copies).unbind(1)
    request = Packet({"model/a": base}, {})
    assert EIGHT.request(request) is request
    coded = EIGHT.answer(Packet({"model/a": exact}, {"samples/value": 3}), request)
    assert {name: array.dtype for name, array in coded.arrays.items()} == {
        "model/a": torch.int8,
        "model/a:scales": torch.float32,
    }
    back = EIGHT.restored(coded, request)
    assert (back.arrays.keys(), back.scalars) == ({"model/a"}, {"samples/value": 3})
    moved = (exact - base).double()
    for start in range(0, len(moved), 1024):
        block = slice(start, start + 1024)
        bound = EIGHT.error * float(moved[block].abs().max()) * 1.0001
        sums = 2 * torch.finfo(torch.float32).eps * torch.maximum(exact.abs(), base.abs())[block].double()
        apart = (back.arrays["model/a"][block].double() - exact[block].double()).abs()
        assert bool((apart <= bound + sums).all())


def test_eight_bits_of_zeros_of_what_is_not_finite_and_of_arrays_without_a_base() -> None:
    zeros = torch.zeros(3, 5)
    assert torch.equal(EIGHT.restored(EIGHT.answer(Packet({"w": zeros}, {}), Packet({}, {}))).arrays["w"], zeros)
    for value in (float("nan"), float("inf"), -float("inf")):
        spoiled = torch.ones(2000)
        spoiled[5] = value
        back = EIGHT.restored(EIGHT.answer(Packet({"w": spoiled}, {}), Packet({}, {}))).arrays["w"]
        assert not back[:1024].isfinite().all()  # it is for the firewall to refuse
        assert torch.equal(back[1024:], spoiled[1024:])
    rows = torch.arange(12.0).reshape(3, 4)
    back = EIGHT.restored(EIGHT.answer(Packet({"rows": rows}, {}), Packet({}, {}))).arrays["rows"]
    assert back.shape == rows.shape
    assert (back - rows).abs().max() <= 11 * EIGHT.error


@pytest.mark.parametrize(
    "scales", [torch.ones(2), torch.ones(1, 1), torch.ones(1, dtype=torch.float64), torch.ones(0), None], ids=str
)
def test_steps_without_scales_that_fit_are_no_answer(scales: torch.Tensor | None) -> None:
    arrays = {"w": torch.ones(10, dtype=torch.int8)} | ({} if scales is None else {"w:scales": scales})
    if scales is None:  # then it is an array of another kind, which no payload declares
        assert EIGHT.restored(Packet(arrays, {})).arrays["w"].dtype == torch.int8
    else:
        with pytest.raises(WireError, match="no scales that fit"):
            EIGHT.restored(Packet(arrays, {}))


def test_what_is_exact_is_the_packet_itself_and_tokens_are_never_rounded() -> None:
    packet = Packet({"a": torch.ones(2), "tokens": torch.tensor([2**60 + 1])}, {"b": 1.5})
    assert EXACT.answer(packet, packet) is packet
    assert EXACT.request(packet) is packet
    for coding in ROUNDED.values():
        coded = coding.answer(packet, Packet({}, {}))
        assert torch.equal(coded.arrays["tokens"], packet.arrays["tokens"])
        assert coded.scalars == packet.scalars


def test_values_that_do_not_fit_are_an_error_and_not_infinite() -> None:
    with pytest.raises(ValueError, match=r"w holds 1e\+06, too large for torch.float16; use a coding with bf16"):
        ROUNDED["fp16"].request(Packet({"w": torch.tensor([1e6])}, {}))
    assert ROUNDED["bf16"].request(Packet({"w": torch.tensor([1e6])}, {})).arrays["w"].isfinite().all()
    nan = torch.tensor([float("nan"), float("inf")])  # what is not finite already is for the firewall to refuse
    assert not ROUNDED["fp16"].request(Packet({"w": nan}, {})).arrays["w"].isfinite().any()


def test_bytes_are_those_of_the_arrays_as_they_travel(layout: Layout) -> None:
    update = Up(model=ModelState(layout, torch.zeros(layout.size)), samples=Count(5), training=Scalars({"loss": 1.0}))
    exact = {"ModelState": 4 * layout.size, "Count": 8, "Scalars": 8}
    half = exact | {"ModelState": 2 * layout.size}
    asked = Broadcast(model=ModelState(layout, torch.zeros(layout.size)))
    assert EXACT.bytes(update, asked) == EXACT.bytes(update) == exact
    assert CODINGS["fp16"].bytes(update, asked) == CODINGS["fp16"].bytes(update) == half
    assert CODINGS["delta-bf16"].bytes(update, asked) == half
    assert CODINGS["delta-bf16"].bytes(replace(update)) == exact
    coded = EIGHT.answer(wire.encode(update), Packet({}, {})).arrays
    crossing = sum(array.numel() * array.itemsize for array in coded.values())
    assert EIGHT.bytes(update, asked) == exact | {"ModelState": crossing}
    assert EIGHT.bytes(update) == exact
    moved = replace(update, model=ModelState(layout, torch.eye(1, layout.size).flatten()))
    assert CHANGED.bytes(update, asked) == exact | {"ModelState": 0}
    assert CHANGED.bytes(moved, asked) == exact | {"ModelState": 8}  # a value and its place
    assert CHANGED.bytes(moved) == exact


@given(st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=40))
def test_values_that_changed_are_all_that_travels_and_the_rest_is_known(values: list[tuple[float, bool]]) -> None:
    base = torch.tensor([value for value, _ in values])
    exact = torch.tensor([value + 1 if moved else value for value, moved in values])
    request = Packet({"model/a": base.reshape(1, -1)}, {})
    packet = Packet({"model/a": exact.reshape(1, -1), "rows": exact, "tokens": torch.arange(3)}, {"samples/value": 3})
    coded = CHANGED.answer(packet, request)
    different = int((base != exact).sum())
    assert coded.arrays["model/a"].numel() == (different if 2 * different < len(values) else len(values))
    back = CHANGED.restored(coded, request)
    assert back.arrays.keys() == packet.arrays.keys()
    assert all(torch.equal(back.arrays[name], array) for name, array in packet.arrays.items())
    assert back.scalars == packet.scalars
    assert CHANGED.request(request) is request


@pytest.mark.parametrize(
    "places",
    [
        torch.tensor([0, 0], dtype=torch.int32),
        torch.tensor([1, 0], dtype=torch.int32),
        torch.tensor([-1, 0], dtype=torch.int32),
        torch.tensor([0, 9], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([0, 1]),
        torch.tensor([[0, 1]], dtype=torch.int32),
    ],
    ids=str,
)
def test_places_that_do_not_fit_are_no_answer(places: torch.Tensor) -> None:
    answer = Packet({"a": torch.ones(2), "a:places": places}, {})
    with pytest.raises(WireError, match="no places that fit"):
        CHANGED.restored(answer, Packet({"a": torch.zeros(9)}, {}))
    with pytest.raises(WireError, match="no places that fit"):
        CHANGED.restored(answer, Packet({}, {}))


def test_an_unknown_coding_is_named() -> None:
    with pytest.raises(ConfigError, match="'zip'; there are exact, fp16"):
        coding_of("zip")
