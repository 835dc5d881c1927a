"""The operator puts clients out of a run and lets them in again."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from personae.algorithms import FedGC, FedPE
from personae.errors import ConfigError, DataError, QuorumLost
from personae.runtime.excluded import EXCLUDED, Exclusions
from personae.runtime.firewall import Firewall
from personae.runtime.inprocess import SameProcess
from personae.runtime.suspicion import Ruling
from toys import NAMES, TRAINING, Crowd, Dropping, Rehearsal, cut_off, quickly, stage_of


def test_the_last_decision_about_a_client_counts_and_all_of_them_stay(tmp_path: Path) -> None:
    exclusions = Exclusions.of(tmp_path)
    assert exclusions.names() == frozenset()
    exclusions.decide(exclude=["bob", "eve"], clients=NAMES, reason="noise")
    assert exclusions.decide(exclude=["bob"], clients=NAMES) == []  # it is out already
    exclusions.decide(include=["bob"], clients=NAMES)
    assert exclusions.names() == {"eve"}
    told = [
        (each["client"], each["excluded"], each["reason"]) for each in json.loads((tmp_path / EXCLUDED).read_text())
    ]
    assert told == [("bob", True, "noise"), ("eve", True, "noise"), ("bob", False, "")]
    assert stat.S_IMODE((tmp_path / EXCLUDED).stat().st_mode) == 0o600


def test_a_wrong_decision_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    exclusions = Exclusions.of(tmp_path)
    with pytest.raises(ConfigError, match="no client 'max' in this run; there are ann, bob, eve, zoe"):
        exclusions.decide(exclude=["ann", "max"], clients=NAMES)
    with pytest.raises(ConfigError, match="ann cannot be put out and let in"):
        exclusions.decide(exclude=["ann"], include=["ann"], clients=NAMES)
    with pytest.raises(ConfigError, match="nobody would be left"):
        exclusions.decide(exclude=NAMES, clients=NAMES)
    assert not exclusions.path.exists()


@pytest.mark.parametrize("content", ["", "{}", '[{"client": "bob"}]', '[{"client": "bob", "excluded": true, "x": 1}]'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / EXCLUDED).write_text(content)
    with pytest.raises(DataError, match=r"excluded\.json: this file cannot be read; restore it"):
        Exclusions.of(tmp_path).names()


def test_a_client_that_is_out_is_not_asked_and_the_model_is_that_of_the_others(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path / "out", (stage_of(FedPE(training=TRAINING)),), excluded=lambda: frozenset({"bob"}))
    run.run()
    assert [event["participants"] for event in run.notebook.rounds()] == [["ann", "eve", "zoe"]] * 2
    assert {line["client"] for line in run.notebook.books["ledger"] if "bytes" in line} == {"ann", "eve", "zoe"}
    without = Rehearsal(tmp_path / "without", run.recipe)
    without.run(Dropping(SameProcess(without.federation), "bob"))
    assert torch.equal(run.final(), without.final())


def test_the_ledger_says_once_from_which_round_on_whatever_interrupts_the_run(tmp_path: Path) -> None:
    out: set[str] = set()
    run = Rehearsal(tmp_path, (stage_of(quickly(FedGC()), rounds=4),), excluded=lambda: frozenset(out))
    known = []
    for number, now in enumerate([set(), {"bob"}, {"bob"}, set()], start=1):  # the server is stopped after each round
        out.clear()
        out.update(now)
        run = cut_off(run, number)
        position, state = run.checkpoints.latest()
        assert set(position.excluded) == now
        known.append(sorted(state.class_embeddings))
    assert [event["participants"] for event in run.notebook.rounds()] == [
        ["ann", "bob", "eve", "zoe"],
        ["ann", "eve", "zoe"],
        ["ann", "eve", "zoe"],
        ["ann", "bob", "eve", "zoe"],
    ]
    assert known == [["ann", "bob", "eve", "zoe"], ["ann", "eve", "zoe"], ["ann", "eve", "zoe"], list(NAMES)]
    admissions = [line for line in run.notebook.books["ledger"] if "admitted" in line]
    assert admissions == [
        {"stage": "fedgc", "round": 2, "client": "bob", "admitted": False},
        {"stage": "fedgc", "round": 4, "client": "bob", "admitted": True},
    ]
    assert "fedgc, round 2: bob was put out of the run" in run.notices


def test_who_was_suspected_and_is_let_in_again_begins_without_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, float]] = []

    def ruling(
        firewall: Firewall, prints: object, excess: object, harms: object, scores: Mapping[str, float]
    ) -> Ruling:
        given.append(dict(scores))
        return Ruling(scores or {"bob": 12.0, "eve": 1.0}, {})

    monkeypatch.setattr(Firewall, "ruling", ruling)

    def out() -> frozenset[str]:  # in the second round
        return frozenset({"bob"} if len(given) == 1 else ())

    Rehearsal(tmp_path, (stage_of(quickly(FedGC()), rounds=3),), excluded=out).run()
    assert given == [{}, {"eve": 1.0}, {"eve": 1.0}]


def test_where_nobody_is_left_to_train_the_run_says_so(tmp_path: Path) -> None:
    crowd = Crowd(newcomers=frozenset({"zoe"}))
    run = Rehearsal(
        tmp_path, (stage_of(FedPE(training=TRAINING)),), crowd, excluded=lambda: frozenset({"ann", "bob", "eve"})
    )
    with pytest.raises(QuorumLost, match="all who could train in it were put out"):
        run.run()
