"""How evenly clients are served, in the table, the JSON and the page of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from fakeruns import fake_run
from personae.evaluation.spread import served
from personae.report.fairness import HEAD, lines_of, plain_fairness
from personae.report.html import write_report
from personae.report.records import read_run
from toys import Crowd, Rehearsal


def write_clients(folder: Path, clients: dict[str, dict[str, float]], new: list[str] | None) -> None:
    """A last word of the clients after the federated stage."""
    event = {"event": "personal", "stage": "federate", "round": 99, "clients": clients}
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps(event if new is None else event | {"new": new}) + "\n")


CLIENTS = {f"c{at:02d}": {"global/rank1": 0.02 * at, "personal/rank1": 0.5 + 0.01 * at} for at in range(12)}
CLIENTS |= {"late": {"global/rank1": 0.1, "personal/rank1": 0.4}, "silent": {}}


def test_both_models_and_the_gain_of_each_client():
    found = served(CLIENTS)["rank1"]
    before = np.array([each["global/rank1"] for each in CLIENTS.values() if each])
    after = np.array([each["personal/rank1"] for each in CLIENTS.values() if each])
    for spread, values in ((found.shared, before), (found.personal, after)):
        assert (spread.mean, spread.deviation) == pytest.approx((values.mean(), values.std()))
        assert (spread.worst, spread.best, spread.clients) == (values.min(), values.max(), 13)
        assert spread.worst_decile == pytest.approx(np.sort(values)[:2].mean())  # a tenth of 13, rounded up
    assert found.gains == pytest.approx(
        {name: each["personal/rank1"] - each["global/rank1"] for name, each in CLIENTS.items() if each}
    )


def test_a_metric_of_one_model_alone_tells_nothing_of_a_gain():
    assert served({"a": {"global/x": 0.5}, "b": {"personal/x": 0.5}}) == {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = fake_run(tmp_path)
    write_clients(run, CLIENTS, ["late"])
    return run


def test_trained_and_new_clients_stand_apart(folder: Path):
    lines = [line for line in lines_of(read_run(folder)) if line.served.shared.clients in (1, 12)]
    trained, new = lines
    assert (trained.clients, new.clients) == ("trained", "new")
    assert list(new.served.gains) == ["late"]
    assert new.cells[1:3] == ("1 new", "rank-1")
    assert new.cells[3:] == ("10.00 → 40.00", "0.00", "10.00 → 40.00", "10.00 → 40.00", "+30.00")
    assert trained.cells[HEAD.index("mean")] == "11.00 → 55.50"


def test_the_json_has_every_client(folder: Path):
    found = json.loads(json.dumps(plain_fairness(folder)))
    new = found[-1]
    assert (new["clients"], new["metric"]) == ("new", "rank1")
    assert new["gains"] == {"late": pytest.approx(0.3)}
    assert new["personal"]["worst_decile"] == 0.4
    assert found[-2]["shared"]["clients"] == 12


def test_a_run_without_clients_has_no_such_table(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    assert plain_fairness(tmp_path) == []


def test_the_page_has_bars_and_marks_new_clients(folder: Path):
    page = write_report(folder).read_text()
    assert "late (new)" in page
    assert "10.00 → 40.00" in page
    assert "worst tenth" in page


def test_records_of_before_there_were_new_clients_can_be_read(tmp_path: Path):
    run = fake_run(tmp_path)
    write_clients(run, CLIENTS, None)
    assert {line.clients for line in lines_of(read_run(run))} == {"trained"}


def test_a_run_says_who_is_new(rehearsal: Rehearsal):
    rehearsal.holdings = Crowd(newcomers=frozenset({"eve"}))
    rehearsal.run()
    events = [event for event in rehearsal.notebook.books["metrics"] if event["event"] == "personal"]
    assert events
    assert all(event["new"] == ["eve"] for event in events)
