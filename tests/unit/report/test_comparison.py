"""Runs side by side: paired differences, and what cannot be compared."""

import json
from pathlib import Path

import numpy as np
import pytest

from fakeruns import Page, described, edit, fake_run, resample, write_lines
from personae.errors import ConfigError
from personae.report.comparison import compare
from personae.report.figures import BYTES, VISITS, benchmarks_over, costs
from personae.report.html import write_comparison
from personae.report.records import read_run
from personae.report.verdict import Role


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The second is better by five points on the same people."""
    for name, rate in (("one", 0.5), ("other", 0.55)):
        folder = fake_run(tmp_path / name, clients=5, federated_rounds=5)
        described(folder)
        resample(folder, {"pretrain": 0.4, "federate": rate, "central": 0.5}, spread=0.01, seed=3)
        edit(folder, "federate", lambda result: result.update(faces="the same"))
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(
        json.dumps(config | {"stages": [{"name": "federate", "rounds": 9}]})
    )
    return tmp_path / "one", tmp_path / "other"


def test_the_second_run_is_compared_with_the_first_pair_by_pair(pair):
    found = compare(pair)
    row = next(row for row in found.verdict.rows if row.label == "other: federated")
    draws = [
        json.loads((folder / "evaluation" / "federate.json").read_text())["benchmarks"]["heldout"]["resampled"][
            "tar@1e-02"
        ]
        for folder in pair
    ]
    gains = np.sort(np.subtract(draws[1], draws[0]))
    assert row.gain.value == pytest.approx(0.05)
    assert (row.gain.interval.low, row.gain.interval.high) == pytest.approx((gains[4], gains[194]))
    assert found.verdict.baseline.label == "one: federated"
    assert found.verdict.sentences == (
        "“other: federated” is the best method: it recognises 55.0% of new people at 1% false accepts, 5.0 "
        f"points more than “one: federated” (50.0%). This is not noise ({row.gain.bounds}).",
    )


def test_a_baseline_that_wins_is_compared_with_the_next(pair):
    sentence = compare(pair[::-1]).verdict.sentences[0]
    assert "“other: federated” is the best method: it recognises 55.0%" in sentence
    assert "5.0 points more than “one: federated”" in sentence


def test_settings_that_differ_are_listed(pair):
    assert compare(pair).differences.rows == [
        ["stages.federate.name", "–", "federate"],
        ["stages.federate.rounds", "–", "9"],
    ]


def test_other_faces_and_other_clients_are_not_paired(pair):
    edit(pair[1], "federate", lambda result: result.update(faces="others"))
    config = json.loads((pair[1] / "config.json").read_text())
    (pair[1] / "config.json").write_text(json.dumps(config | {"seed": 8}))
    found = compare(pair)
    assert [note.text for note in found.notes] == [
        "other was tested on other faces than one: differences have no intervals.",
        "other has other clients than one: they are not compared one by one.",
    ]
    row = next(row for row in found.verdict.rows if row.label == "other: federated")
    assert row.gain.interval is None


def test_damaged_unfinished_and_missing_runs_get_a_line_each(pair, tmp_path):
    (pair[1] / "evaluation" / "central.json").unlink()
    broken = fake_run(tmp_path / "broken", clients=2, federated_rounds=5)
    (broken / "metrics.jsonl").write_text("{oops\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    found = compare([*pair, broken, empty, tmp_path / "nowhere"])
    texts = [note.text for note in found.notes]
    assert texts[0] == "other is not finished (central); its figures are provisional."
    assert texts[1].startswith(f"Left out: {broken / 'metrics.jsonl'}, line 1, cannot be read")
    assert texts[2] == "empty is left out: nothing has been evaluated in it yet."
    assert "nowhere: there is no such folder" in texts[3]
    with pytest.raises(ConfigError, match="needs two runs that can be read, not 1"):
        compare([pair[0], broken])


def test_the_page_overlays_the_runs(pair, tmp_path):
    write_comparison(compare(pair), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert "Comparison of runs" in page.words
    assert "stages.federate.rounds" in page.words
    (roc,) = [value for _, value in page.attributes if value and value.startswith("heldout: ROC")]
    assert "one: federated" in roc
    assert "other: federated" in roc


def test_models_are_drawn_over_the_work_of_clients_and_over_bytes(pair, tmp_path):
    """The second run asks one client of five a round, and goes on from a stage that had asked one, too."""
    for name, keep in (("metrics", lambda line: True), ("ledger", lambda line: line["client"] == "client-000")):
        path = pair[1] / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line.get("event") == "round" and line["stage"] != "central":
                line["participants"] = ["client-000"]
        write_lines(path, [line for line in lines if keep(line)])
    described(pair[1], federate={"after": "pretrain"})
    comparison = compare(pair)
    everybody, one = benchmarks_over(comparison.run, comparison.run.stages, VISITS)["heldout", "TAR at FAR 1%"]
    assert everybody.x == [0, 5, 10, 15, 20, 25]
    assert one.x == [4, 5, 6, 7, 8, 9]  # four rounds of the stage before
    assert one.y == everybody.y
    bytes_ = benchmarks_over(comparison.run, comparison.run.stages, BYTES)["heldout", "TAR at FAR 1%"]
    each = 2 * 1_234_567 + 20_480 + 8
    assert [line.x for line in bytes_] == [[5 * each * at for at in range(6)], [each * at for at in range(6)]]
    write_comparison(comparison, tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    shown = [value for _, value in page.attributes if value and value.startswith("heldout: TAR at FAR 1% over")]
    assert [value.partition(".")[0] for value in shown] == [
        "heldout: TAR at FAR 1% over client visits",
        "heldout: TAR at FAR 1% over bytes",
    ]
    assert "MB to and from clients" in page.words


def test_pooled_training_is_a_level_line_beside_what_clients_do(pair):
    """It takes no work of theirs, and of one federated model the rounds say as much."""
    run = read_run(pair[0])
    assert not costs(run)
    described(pair[0], pretrain={"federated": True, "discloses": ["ModelState"]})
    lines = [json.loads(line) for line in (pair[0] / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["event"] == "round" and line["stage"] == "pretrain":
            line["participants"] = ["client-000"]
    write_lines(pair[0] / "metrics.jsonl", lines)
    section = costs(read_run(pair[0]))
    assert [note.text for note in section.notes] == ["A level line is where pooled training ended."]
    assert all("central ends at" in figure.summary for figure in section.figures)


def test_a_run_of_pooled_training_is_shown_beside_the_others_and_does_not_compete(pair):
    described(pair[1], **{stage: {"pools_faces": True, "federated": False} for stage in ("pretrain", "federate")})
    edit(pair[1], "central", lambda result: result.update(faces="the same"))
    found = compare(pair)
    assert not found.notes
    assert [row.label for row in found.verdict.rows if row.role is Role.POOLED] == ["other: central"]
    assert found.verdict.best.label == "one: federated"
    assert found.verdict.remarks[0].startswith("Training on all faces in one place (“other: central”) reaches 50.0%")


def test_runs_of_one_name_go_by_their_paths(pair, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    twin = pair[1].rename(tmp_path / "elsewhere" / "one")
    labels = [row.label for row in compare([pair[0], twin]).verdict.rows]
    assert f"{twin}: federated" in labels
