"""A company's day from end to end: messy photographs, offices over a network, and each office's own login."""

import signal
from pathlib import Path

import pytest
from company import company


@pytest.mark.slow
def test_a_short_day_of_a_company(tmp_path: Path) -> None:
    offices = ("Berlin", "Lisbon")
    with company(tmp_path / "company", offices=offices, people=3, images=6) as day:
        for office in offices:
            day.align(office)
        day.serve("stages.shared.rounds=2")
        for office in offices:
            day.join(office)
        day.done()
        for office in offices:
            day.use(office)
        assert day.names_at_the_server() == []


@pytest.mark.slow
def test_a_companys_day(tmp_path: Path) -> None:
    offices = ("Berlin", "Lisbon", "Oslo", "Madrid")
    with company(tmp_path / "company", offices=offices, people=5, images=10) as day:
        for office in offices:
            day.align(office)
        day.serve("stages.shared.rounds=8", "stages.shared.evaluate_every=1", wait=20)
        for office in ("Berlin", "Lisbon", "Oslo"):
            day.join(office)
        day.wait_for("the first round", day.rounds)
        day.join("Madrid")  # late

        def heard(office: str, event: dict) -> bool:
            return office in event["participants"] and office not in event["failed"]

        day.wait_for("Madrid to take part", lambda: any(heard("Madrid", event) for event in day.rounds()))
        day.processes["Oslo"].send_signal(signal.SIGTERM)  # it leaves
        day.done()
        assert heard("Oslo", day.rounds()[0])
        assert not heard("Madrid", day.rounds()[0])
        assert not heard("Oslo", day.rounds()[-1])
        assert heard("Madrid", day.rounds()[-1])
        assert day.processes["Oslo"].wait(30) == 0
        for office in offices:
            if office != "Oslo":  # it left before its own model was made; it has the shared one
                day.use(office)
        day.type("export", day.home("Oslo"), "--to", tmp_path / "oslo.safetensors", "--no-evaluate")
        assert day.names_at_the_server() == []
