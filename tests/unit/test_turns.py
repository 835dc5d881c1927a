"""Clients keep their place where several train at once."""

from dataclasses import dataclass
from typing import Any

import pytest

from personae.runtime.turns import Turns


@dataclass(frozen=True)
class Named:
    name: str


@dataclass(frozen=True, eq=False)
class Asked:
    """As much of a request as counts here."""

    client: Named


def turns(names: str, last: dict[str, int], window: int = 8) -> Any:
    return Turns(iter([Asked(Named(name)) for name in names]), last, window)  # type: ignore[misc]


def test_everybody_has_one_turn_in_the_order_of_asking_at_first():
    last: dict[str, int] = {}
    round_ = turns("abcdef", last)
    found = [round_.next_for(place).client.name for place in (0, 1, 0, 1, 0, 0)]
    assert found == list("abcdef")
    assert round_.next_for(1) is None
    assert last == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0, "f": 0}


def test_clients_come_back_to_their_place():
    last = {"a": 1, "b": 0, "c": 1, "d": 0}
    round_ = turns("abcd", last)
    assert [round_.next_for(place).client.name for place in (0, 0, 1, 1)] == list("bdac")


def test_newcomers_before_those_of_others_and_these_from_the_end():
    last = {"a": 1, "b": 1, "d": 1}
    round_ = turns("abcd", last)
    assert [round_.next_for(0).client.name for _ in range(4)] == list("cdba")
    assert last == {"a": 0, "b": 0, "c": 0, "d": 0}


@pytest.mark.parametrize("window", [1, 3])
def test_no_more_requests_are_held_than_the_window(window: int):
    made = []

    def requests():
        for name in "abcdefgh":
            made.append(name)
            yield Asked(Named(name))

    round_ = Turns(requests(), {"h": 0}, window)  # type: ignore[arg-type]
    seen = []
    while (request := round_.next_for(0)) is not None:
        seen.append(request.client.name)
        assert len(made) - len(seen) < window
    assert sorted(seen) == list("abcdefgh")
    assert seen.index("h") == 7 - (window - 1)  # as soon as it comes into view
