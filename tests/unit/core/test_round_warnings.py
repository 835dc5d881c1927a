"""Warnings that something goes wrong: in the figures of a round, on screen, in the records and in the report."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from personae.algorithms import FedFR, FedPE
from personae.core.strong_start import STRONG_START
from personae.core.warnings import Figures
from personae.layers import Carry
from personae.parts.public import PublicSampling
from personae.report.html import write_report
from personae.report.records import read_run
from personae.report.sections import defence
from personae.report.warnings import warnings_of
from personae.screen import results as screen
from personae.selection.passes import Passes
from toys import TRAINING, Rehearsal, cut_off, quickly, stage_of

SHARE = "the share of public faces taken for hard negatives is 100%"


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({}, {"loss": 9.0}, False),  # the first round has nothing to be compared with
        ({"loss": 4.0}, {"loss": 3.0}, False),
        ({"loss": 4.0}, {"loss": 8.0}, False),
        ({"loss": 4.0}, {"loss": 8.1}, True),
        ({"loss": -1.0}, {"loss": 5.0}, False),  # no multiple means anything from below zero
        ({"other": 1.0}, {"other": 9.0}, False),
    ],
)
def test_a_loss_that_more_than_doubles_is_a_sign(before: dict[str, float], now: dict[str, float], told: bool):
    found = list(FedPE().warnings(Figures(now, before)))
    assert len(found) == told
    assert all("the training loss rose from 4 to 8.1 in one round; lower the learning rate" in line for line in found)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (0.06, 1.0, f"{SHARE}; in the round before it was 6%: the model tells few people apart"),
        (None, 1.0, f"{SHARE}: the model tells few people apart"),
        (0.06, 0.2, None),
        (0.9, 1.0, None),  # it was said before
    ],
)
def test_fedfr_that_takes_most_public_faces_for_hard_negatives_says_so(
    before: float | None, now: float, told: str | None
):
    figures = Figures({"public_share": now}, {} if before is None else {"public_share": before})
    found = list(FedFR().warnings(figures))
    assert [line.partition(";" if before is None else "; lower")[0] for line in found] == ([told] if told else [])
    assert list(FedFR(sampling=PublicSampling(threshold=-1)).warnings(figures)) == []  # all of them, as asked for


def test_what_clients_carry_changes_nothing_about_warnings():
    carrying = Carry(momentum="client").around(FedFR(training=replace(TRAINING, momentum=0.9)))
    assert "100%" in next(iter(carrying.warnings(Figures({"public_share": 1.0}))))


@dataclass(frozen=True, kw_only=True)
class Watchful(FedPE):
    """Says what it was shown."""

    def warnings(self, figures: Figures) -> Iterator[str]:
        def shown(values: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {value:.6f}" for name, value in values.items())

        yield f"{shown(figures.before)} -> {shown(figures.now)} of {', '.join(figures.clients)}"


def test_signs_are_said_and_recorded_with_the_figures_of_this_round_and_the_one_before(tmp_path: Path):
    run = Rehearsal(tmp_path, (stage_of(quickly(Watchful()), rounds=3),)).run()
    losses = [f"loss {event['scalars']['loss']:.6f}" for event in run.notebook.rounds()]
    expected = [
        f"{before} -> {now} of ann, bob, eve, zoe" for before, now in zip(["", *losses[:-1]], losses, strict=True)
    ]
    events = [event for event in run.notebook.books["metrics"] if event["event"] == "warning"]
    assert [(event["stage"], event["round"], event["text"]) for event in events] == [
        ("fedpe", number, text) for number, text in enumerate(expected, 1)
    ]
    assert run.notices == [f"fedpe, round {number}: {text}" for number, text in enumerate(expected, 1)]


@pytest.mark.parametrize(("asked", "compared"), [(1, False), (2, True)])
def test_few_clients_are_not_compared_with_others(tmp_path: Path, asked: int, compared: bool):
    """Of four. In small cohorts the loss rises and falls with who is asked."""
    stage = replace(stage_of(quickly(Watchful()), rounds=2), selection=Passes(clients=asked), quorum=0.1)
    run = Rehearsal(tmp_path, (stage,)).run()
    assert len(run.notices) == 2
    assert ("fedpe, round 2:  -> loss" in run.notices[1]) != compared


def test_a_resumed_run_sees_the_same_warnings(tmp_path: Path):
    """What the figures were before the interruption is part of the checkpoint."""
    recipe = (stage_of(quickly(Watchful()), rounds=3), stage_of(quickly(Watchful()), name="next"))
    whole = Rehearsal(tmp_path / "whole", recipe).run()
    again = cut_off(Rehearsal(tmp_path / "cut", recipe), after=2).run()
    assert again.notebook.books["metrics"] == whole.notebook.books["metrics"]


def write_run(folder: Path, figures: dict[str, list[dict[str, float]]], after: dict[str, str | None]) -> Path:
    """A run by the benchmarks of its stages, round by round from 0 on; all but `pretrain` are federated."""
    (folder / "evaluation").mkdir()
    (folder / "config.json").write_text("{}")
    stages = [{"name": name, "federated": name != "pretrain", "after": after[name]} for name in figures]
    (folder / "summary.json").write_text(json.dumps({"stages": stages}))
    events = [
        {"event": "global", "stage": name, "round": number, "metrics": metrics}
        for name, rounds in figures.items()
        for number, metrics in enumerate(rounds)
        if metrics
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    curves = {"roc": {"far": [], "tar": []}, "histogram": {"edges": [0, 1], "genuine": [0], "impostor": [0]}}
    for name, rounds in figures.items():
        benchmarks: dict[str, Any] = {}
        for figure, value in rounds[-1].items():
            benchmarks.setdefault(figure.partition("/")[0], {"metrics": {}, **curves})["metrics"][
                figure.partition("/")[2]
            ] = value
        content = {"stage": name, "round": len(rounds) - 1, "benchmarks": benchmarks}
        (folder / "evaluation" / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_federated_stage_that_ends_below_its_start_is_told(tmp_path: Path):
    start = {"heldout/tar@1e-01": 0.99, "heldout/tar@1e-03": 0.939, "private/tar@1e-03": 0.5}
    figures = {"fedfr": [start, {"heldout/tar@1e-01": 0.99, "heldout/tar@1e-03": 0.463, "private/tar@1e-03": 0.4}]}
    run = write_run(tmp_path, figures, {"fedfr": None})
    (told,) = warnings_of(read_run(run))
    assert told.startswith(
        "fedfr ends 47.6 points below its start (heldout TAR at FAR 0.1%: 93.9 -> 46.3); lower its learning rate"
    )
    page = write_report(run).read_text()
    assert "fedfr ends 47.6 points below its start (heldout TAR at FAR 0.1%: 93.9 -&gt; 46.3)" in page


def test_a_stage_is_compared_with_what_it_began_with(tmp_path: Path):
    figures = {
        "pretrain": [
            {"heldout/tar@1e-03": 0.9},
            {"heldout/tar@1e-03": 0.6, "heldout/tar@1e-04": 0.01},
        ],  # the server's own: no federated stage
        "better": [{}, {"heldout/tar@1e-03": 0.7}],
        "worse": [{}, {"heldout/tar@1e-03": 0.5}],
        "scratch": [{"heldout/tar@1e-03": 0.9}, {"heldout/tar@1e-03": 0.89}],
        "alike": [{}, {"heldout/tar@1e-03": 0.5997, "heldout/tar@1e-04": 0.0}],
    }
    after = {"pretrain": None, "better": "pretrain", "worse": "pretrain", "scratch": None, "alike": "pretrain"}
    told = warnings_of(read_run(write_run(tmp_path, figures, after)))
    assert [line.partition(");")[0] for line in told] == [
        "worse ends 10.0 points below its start (heldout TAR at FAR 0.1%: 60.0 -> 50.0",
        "scratch ends 1.0 points below its start (heldout TAR at FAR 0.1%: 90.0 -> 89.0",
    ]


def write_clients(run: Path, figures: dict[tuple[str, int], dict[str, float]]) -> None:
    """Figures of two clients, by stage and round."""
    with (run / "metrics.jsonl").open("a") as lines:
        for (stage, number), metrics in figures.items():
            clients = {"ann": metrics, "bob": metrics}
            event = {"event": "personal", "stage": stage, "round": number, "clients": clients, "new": []}
            lines.write(json.dumps(event) + "\n")


def test_models_of_their_own_that_are_worse_than_the_shared_one_are_told(tmp_path: Path):
    held = {"heldout/tar@1e-03": 0.9}
    run = write_run(tmp_path, {"fedpe": [held, held], "adapt": [{}, held]}, {"fedpe": None, "adapt": "fedpe"})
    own, shared = "personal/tar@1e-02", "global/tar@1e-02"
    write_clients(
        run,
        {
            ("fedpe", 0): {own: 0.8, shared: 0.8},
            ("fedpe", 1): {own: 0.92, shared: 0.92},
            ("adapt", 1): {own: 0.5, shared: 0.92},
        },
    )
    (told,) = warnings_of(read_run(run))
    assert told.startswith(
        "adapt leaves clients' own models 42.0 points below its start (clients TAR at FAR 1%, personal: 92.0 -> 50.0); "
        "lower its learning rate"
    )


def test_a_fall_among_everybody_is_told_where_own_people_alone_are_told_apart_better(tmp_path: Path):
    held = {"heldout/tar@1e-03": 0.9}
    run = write_run(tmp_path, {"adapt": [held, held]}, {"adapt": None})
    before = {"global/tar@1e-02": 0.468, "global/1:1 tar@1e-02": 0.408}
    own = {"personal/tar@1e-02": 0.502, "personal/1:1 tar@1e-02": 0.388}
    write_clients(run, {("adapt", 0): before, ("adapt", 1): {**before, **own}})
    (told,) = warnings_of(read_run(run))
    assert "leaves clients' own models 2.0 points below its start (clients 1:1 TAR at FAR 1%, personal: 40.8" in told


def test_what_to_change_is_what_no_strong_start_has(tmp_path: Path):
    run = write_run(tmp_path, {"fedpe": [{"heldout/tar@1e-03": 0.9}, {"heldout/tar@1e-03": 0.8}]}, {"fedpe": None})
    given = {"head_init": "mean", "batch_norm": "train", "training": {**STRONG_START["training"], "lr": 0.5}}
    config = {"weights": "model.pth", "stages": [{"name": "fedpe", "algorithm": {"name": "fedpe", **given}}]}
    (run / "config.json").write_text(json.dumps(config))
    (told,) = warnings_of(read_run(run))
    assert (
        f"it has batch_norm = train (not eval), training.lr = 0.5 (not {STRONG_START['training']['lr']}): leave" in told
    )


def test_a_fall_is_the_first_line_of_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = write_run(tmp_path, {"fedpe": [{"heldout/tar@1e-03": 0.9}, {"heldout/tar@1e-03": 0.8}]}, {"fedpe": None})
    screen.models(run, run / "report.html", as_json=False)
    assert capsys.readouterr().out.startswith("- fedpe ends 10.0 points below its start")


def write_suspicions(run: Path, drawn_back: list[dict[str, dict[str, float]]], left_out: tuple[str, ...] = ()) -> None:
    """Rounds in which ann, bob and eve were asked, and what of theirs was drawn back in each."""
    with (run / "metrics.jsonl").open("a") as lines:
        for number, factors in enumerate(drawn_back, start=1):
            place = {"stage": "fedpe", "round": number}
            asked = {"event": "round", **place, "participants": ["ann", "bob", "eve"], "rejected": {}, "failed": {}}
            done = {"event": "suspicion", **place, "scores": {}, "left_out": dict.fromkeys(left_out, "why")}
            lines.write(json.dumps({**asked, "scalars": {}}) + "\n")
            lines.write(json.dumps({**done, "drawn_back": factors}) + "\n")


def test_a_client_that_counts_for_less_in_most_rounds_is_told_with_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path, {"fedpe": [{"heldout/tar@1e-03": 0.9}]}, {"fedpe": None})
    large = {"ann": {"number of samples": 0.11}}
    long = {"ann": {"number of samples": 0.11, "update": 0.3, "change of BatchNorm's statistics": 0.9}}
    slightly = {"eve": {"number of samples": 0.9}}
    write_suspicions(run, [large, {**long, "bob": {"update": 0.5}}, {**long, **slightly}, slightly])
    told = warnings_of(read_run(run))
    assert told == [
        "fedpe: clients with far more images than the others did not count in full: ann (11% in 3 of 4 rounds). If you "
        "trust them, raise firewall.samples_multiple and firewall.credible; attackers look the same "
        "(docs/concepts/security.md)"
    ]
    screen.models(run, run / "report.html", as_json=False)
    assert capsys.readouterr().out.startswith(f"- {told[0]}")
    assert "ann (11% in 3 of 4 rounds)" in write_report(run).read_text()


def test_long_updates_have_another_setting_and_suspects_are_not_spoken_for(tmp_path: Path):
    run = write_run(tmp_path, {"fedpe": [{"heldout/tar@1e-03": 0.9}]}, {"fedpe": None})
    write_suspicions(run, [{"ann": {"update": 0.2}, "eve": {"update": 0.01}}] * 2, left_out=("eve",))
    (told,) = warnings_of(read_run(run))
    assert "had them shortened: ann (20% in 2 of 2 rounds). If you trust them, raise firewall.norm_multiple and" in told


def test_the_report_has_them(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text(
        '{"event": "warning", "stage": "federate", "round": 3, "text": "few people are told apart"}\n'
    )
    assert warnings_of(read_run(tmp_path)) == ["federate, round 3: few people are told apart"]


def test_the_report_says_in_how_many_rounds_whose_update_was_drawn_back(tmp_path: Path):
    """Two quantities of one round are one round, and a score that is shown as zero is no suspicion."""
    run = write_run(tmp_path, {"fedpe": [{"heldout/tar@1e-03": 0.9}]}, {"fedpe": None})
    assert [note.text for note in defence(read_run(run)).notes] == [
        "No update was left out for suspicion or made smaller."
    ]
    both = {"ann": {"number of samples": 0.11, "update": 0.3}}
    write_suspicions(run, [both, both, {}])
    section = defence(read_run(run))
    assert (section.title, section.notes) == ("Defence", [])
    (table,) = section.tables
    assert [dict(zip(table.head, row, strict=True)) for row in table.rows] == [
        {"stage": "fedpe", "client": "ann", "suspected because": "–", "highest score": "0.0"}
        | {"rounds left out": "0", "rounds drawn back": "2", "to": "0.11"}
    ]
    ((_, rounds),) = section.folded
    assert [row[1] for row in rounds.rows] == ["1", "2"]


def test_remarks_on_rounds_are_not_repeated_to_whoever_watched_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path, {"fedpe": [{"heldout/tar@1e-03": 0.8}, {"heldout/tar@1e-03": 0.9}]}, {"fedpe": None})
    with (run / "metrics.jsonl").open("a") as lines:
        remark = {"event": "warning", "stage": "fedpe", "round": 1, "text": "few people are told apart"}
        lines.write(json.dumps(remark) + "\n")
    screen.models(run, run / "report.html", as_json=False)
    assert "few people" not in capsys.readouterr().out
    screen.models(run, run / "report.html", as_json=False, watched=False)
    assert "- fedpe, round 1: few people are told apart" in capsys.readouterr().out
