"""What goes through memory that two processes share comes out as it went in."""

import os
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from personae.core.wire import Packet, WireError
from personae.runtime import shelf
from personae.runtime.shelf import MEMORY, PLACE, SMALLEST, Shelf, shelves


def packet(seed: int) -> Packet:
    torch.manual_seed(seed)
    arrays = {"model": torch.randn(2 * SMALLEST), "rows": torch.randn(SMALLEST // 8, 8), "few": torch.randn(3)}
    arrays["tokens"] = torch.arange(2 * SMALLEST)
    return Packet(arrays, {"samples/value": seed})


def same(first: Packet, second: Packet) -> bool:
    assert first.scalars == second.scalars
    assert first.arrays.keys() == second.arrays.keys()
    return all(torch.equal(array, second.arrays[name]) for name, array in first.arrays.items())


def test_arrays_lie_in_the_boxes_and_what_is_small_or_finds_no_room_goes_the_other_way():
    sender = Shelf(boxes=shelves(1, 2 * SMALLEST)[0])
    sent = sender.request(packet(0))
    assert sent.arrays.keys() == {"model" + PLACE, "rows", "few", "tokens"}
    assert same(sender.restored(sent), packet(0))
    roomy = Shelf(boxes=shelves(1, 3 * SMALLEST)[0])
    assert roomy.request(packet(0)).arrays.keys() == {"model" + PLACE, "rows" + PLACE, "few", "tokens"}
    assert same(roomy.restored(roomy.request(packet(0))), packet(0))


def test_an_answer_may_be_read_while_the_next_one_is_written():
    sender = Shelf(boxes=shelves(1, 3 * SMALLEST)[0])
    receiver = replace(sender)
    sent = [sender.answer(packet(number), Packet({}, {})) for number in range(3)]
    for early, (number, later) in zip(sent[1:], enumerate(sent[2:], 1), strict=False):
        assert same(receiver.restored(early), packet(number))
        assert same(receiver.restored(later), packet(number + 1))
    places = [each.arrays["model" + PLACE][0].item() for each in sent]
    assert all(first != second for first, second in pairwise(places))
    assert 0 not in places


def test_what_is_taken_out_stays_when_the_box_is_filled_again():
    both = Shelf(boxes=shelves(1, 3 * SMALLEST)[0])
    taken = both.restored(both.request(packet(0)))
    both.request(packet(1))
    assert same(taken, packet(0))


@pytest.mark.parametrize("place", [[3, 0, 8], [-1, 0, 8], [0, -8, 8], [0, 0, 3 * SMALLEST + 1], [0, 8, -4]])
def test_a_place_outside_of_the_boxes_is_refused(place: list[int]):
    both = Shelf(boxes=shelves(1, 3 * SMALLEST)[0])
    with pytest.raises(WireError, match="lies outside"):
        both.restored(Packet({"model" + PLACE: torch.tensor(place)}, {}))


def test_without_shared_memory_everything_goes_the_other_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shelf, "_free", lambda folder: 4 * SMALLEST)
    both = Shelf(boxes=shelves(1, 3 * SMALLEST)[0])
    assert both.request(packet(0)).arrays.keys() == packet(0).arrays.keys()


def test_shared_memory_has_no_name_and_so_goes_with_its_processes_however_they_end():
    boxes = shelves(1, 2 * SMALLEST)
    assert all(box.is_shared() for box in boxes[0])
    assert list(MEMORY.glob(f"torch_{os.getpid()}_*")) == []
