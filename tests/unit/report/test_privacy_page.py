"""The privacy page says who saw what, what was measured and what was not; the annex leaves people their questions."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fakeruns import described, fake_run
from personae.cli import app
from personae.core.events import PrivacySpent
from personae.errors import DataError
from personae.privacy.audit import PRIVACY_ATTACKS, Audit, Finding, write_audit
from personae.report.dpia import QUESTIONS, annex
from personae.report.html import write_report
from personae.report.privacy import (
    attack_row,
    attack_rows,
    beyond_chance,
    differential_privacy,
    findings_of,
    plain_privacy,
    seen,
    threats,
    unmeasured_rows,
)
from personae.report.records import read_run


@pytest.fixture
def run(tmp_path):
    folder = fake_run(tmp_path / "run", clients=5, federated_rounds=4)
    described(folder)
    return folder


FOUND = Finding(
    attack="templates",
    stage="federate",
    target="ClassEmbeddings",
    figure="rank-1",
    value=0.5,
    chance=0.01,
    low=0.4,
    high=0.6,
    trials=100,
)


def test_who_saw_what_is_as_in_the_ledger(run):
    rows = {(row[1], row[2], row[3]): row for row in seen(read_run(run))}
    up = rows["ClassEmbeddings", "5 clients", "the server"]
    assert up[4:6] == ["1 to 4", "20"]
    assert rows["ModelState", "the server", "5 clients, each its own"][4] == "1 to 4"
    assert any(row[1] == "faces" for row in seen(read_run(run)))  # the central stage pools them


@pytest.mark.parametrize(("clients", "words"), [(1, "a round of one client"), (2, "a round of two clients"), (3, None)])
def test_what_clients_see_of_each_other_follows_from_who_was_asked(tmp_path, clients, words):
    folder = fake_run(tmp_path / "run", clients=clients, federated_rounds=4)
    described(folder)
    few = "federated: in " if words is None else f"federated: in {words}"
    assert (few in dict(threats(read_run(folder)))["another client"]) == (words is not None)
    assert (few in annex(read_run(folder))) == (words is not None)
    described(folder, federate={"discloses": ["Scalars"]})  # every client keeps its model
    assert few not in dict(threats(read_run(folder)))["another client"]


def test_what_was_not_measured_is_said(run):
    assert [row[0] for row in unmeasured_rows(findings_of(read_run(run)))] == list(PRIVACY_ATTACKS)
    page = write_report(run).read_text()
    assert "Attacks: not measured." in page
    assert "hidden-rows" not in page  # one line says it, not a row for each attack and stage
    assert "Differential privacy: " in page


def test_what_was_measured_stands_beside_chance(run):
    write_audit(run, Audit((PRIVACY_ATTACKS["templates"].described(),), (FOUND,)))
    content = read_run(run)
    (first,) = attack_rows(findings_of(content))
    assert first == ["federated", "templates", "ClassEmbeddings", "rank-1", "50%", "40% to 60%", "1%", "100"]
    assert "40% to 60%" in write_report(run).read_text()
    assert [each["found"] for each in plain_privacy(content, ["federate"])["attacks"]] == ["50%"]
    assert plain_privacy(content, ["pretrain"])["attacks"] == []
    epsilon = Finding(attack="canaries", stage="federate", target="model", figure="epsilon", value=3.0, trials=2)
    assert attack_row(epsilon)[4:] == ["3.00", "–", "–", "2"]
    (run / "audit.json").write_text("{}")
    with pytest.raises(DataError, match="make it again with personae audit"):
        read_run(run)


def test_the_annex_has_the_records_and_open_questions(run):
    write_audit(run, Audit((), (FOUND,)))
    ended = CliRunner().invoke(app, ["dpia", str(run), "--json"])
    assert ended.exit_code == 0, ended.output
    (path,) = json.loads(ended.stdout)
    text = (run / "dpia.md").read_text()
    assert path == str(run / "dpia.md")
    assert text == annex(read_run(run))
    for question in (each for questions in QUESTIONS.values() for each in questions):
        assert f"- [ ] {question}\n  Answer:\n" in text
    assert "| federated | templates | ClassEmbeddings | rank-1 | 50% | 40% to 60% | 1% | 100 |" in text
    assert "Faces of all clients were pooled in one place** in central" in text


def test_epsilon_is_told_where_a_layer_adds_noise(run):
    assert "Differential privacy: none." in annex(read_run(run))
    line = {"event": "privacy", "stage": "federate", "round": 4, "epsilon": 2.5, "delta": 1e-5, "unit": "client"}
    line |= {"against": "readers", "covers": ["ModelState"], "secret": True, "accountant": "pld"}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert "Differential privacy: epsilon 2.5 at delta 1e-05 for each client" in annex(read_run(run))
    assert "epsilon 2.5 at delta 1e-05" in write_report(run).read_text()
    assert plain_privacy(read_run(run), [])["differential_privacy"].startswith("epsilon 2.5")


@pytest.mark.parametrize(
    ("epsilon", "reading"),
    [
        (2.5, "nothing that anybody observes is more than 12 times as probable with one person as without"),
        (8.0, "a weak promise: what anybody observes may be up to 3,000 times as probable with one person as without"),
        (2000.0, "An epsilon above 10 promises nothing that anybody could rely on"),
    ],
)
def test_the_page_says_what_an_epsilon_promises(run, epsilon, reading):
    said = PrivacySpent(
        stage="federate", round=1, epsilon=epsilon, delta=1e-5, unit="person", against="server", covers=(),
        secret=True, accountant="pld",
    )  # fmt: skip
    words = differential_privacy(replace(read_run(run), spent=(said,)))
    assert reading in words
    assert words.endswith("keep these apart from the model.")


def test_the_page_names_what_got_beyond_chance(run):
    low = replace(FOUND, attack="updates", value=0.011, low=0.0, high=0.05)
    write_audit(run, Audit((), (FOUND, low)))
    words = "templates on ClassEmbeddings, rank-1 50% where chance is 1%."
    assert beyond_chance(read_run(run)) == words
    assert f"Beyond chance: {words}" in annex(read_run(run))
    assert words in write_report(run).read_text()
    write_audit(run, Audit((), (low,)))
    assert "Beyond chance: none of those that were made." in annex(read_run(run))
    write_audit(
        run, Audit((), (Finding(attack="updates", stage="federate", target="–", figure="rank-1", reason="no"),))
    )
    assert "Beyond chance: not known, because no attack could be made." in annex(read_run(run))
    assert ["updates", "federated", "no"] in unmeasured_rows(findings_of(read_run(run)))
