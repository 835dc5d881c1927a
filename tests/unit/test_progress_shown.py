"""What a person sees while work goes on: lines in a log, a bar in a terminal."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from personae import console
from personae.algorithms import FedPE
from personae.progress import Advance
from toys import Rehearsal, quickly, stage_of


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A log, with a clock that goes on by six seconds whenever somebody looks at it."""
    told = io.StringIO()
    monkeypatch.setattr(console, "messages", Console(file=told, highlight=False, width=80))
    clock = iter(range(0, 10_000, 6))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    return told


def test_a_log_gets_a_line_with_what_is_going_on_and_how_long_it_still_takes(written: io.StringIO) -> None:
    with console.meter("stage 2 of 5, federated", 4, "clients") as advance:
        advance(0, "round 1 of 2")  # after 6 seconds: too soon for a line
        advance(1)  # after 12: a quarter of the work
        advance(1)
        advance(0, "round 2 of 2, loss 1.4")  # after 24: half of it
        advance(2)
    assert written.getvalue().splitlines() == [
        "stage 2 of 5, federated, round 1 of 2, 36 s left",
        "stage 2 of 5, federated, round 2 of 2, loss 1.4, 24 s left",
        "stage 2 of 5, federated, round 2 of 2, loss 1.4, 36 s",
    ]


def test_work_that_says_nothing_is_counted(written: io.StringIO) -> None:
    with console.meter("rendering faces", 4, "images") as advance:
        advance(1)
        advance(2)
        advance(1)
    assert written.getvalue().splitlines() == [
        "rendering faces: 3/4 images, 15 images/min, 4 s left",
        "rendering faces: 4/4 images, 10 images/min",
    ]


def test_a_terminal_gets_a_bar_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    terminal = Console(file=told, force_terminal=True, width=80, color_system=None, highlight=False)
    monkeypatch.setattr(console, "messages", terminal)
    with console.meter("stage 2 of 5, federated", 4, "clients") as advance:
        advance(3, "round 2 of 2, loss 1.4")
        advance(1)
    last = told.getvalue().split("\r")[-1]
    assert "stage 2 of 5, federated" in last
    assert "round 2 of 2, loss 1.4" in last
    assert max(map(len, last.split("\n"))) <= 100  # signs that move the cursor count, too


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5400, "90 min"), (9000, "2.5 h")]
)
def test_durations_are_as_exact_as_a_guess_can_be(seconds: float, words: str) -> None:
    assert console.duration(seconds) == words


def test_a_run_says_stage_round_and_loss(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    @contextmanager
    def meter(description: str, total: int, unit: str) -> Iterator[Advance]:
        yield lambda count, now="": told.append((description, now)) if now else None

    run = Rehearsal(tmp_path, (stage_of(quickly(FedPE()), name="one"), stage_of(quickly(FedPE()), name="two")))
    replace(run.engine(), progress=meter).run()
    losses = [round_["scalars"]["loss"] for round_ in run.notebook.rounds() if round_["stage"] == "two"]
    assert [now for place, now in told if place == "stage 2 of 2, two"] == [
        "round 1 of 2",
        f"round 1 of 2, loss {losses[0]:.3g}",
        f"round 2 of 2, loss {losses[0]:.3g}",
        f"round 2 of 2, loss {losses[1]:.3g}",
    ]
