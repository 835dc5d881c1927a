"""What a run's figures say: who won, and whether that is noise."""

import io
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from fakeruns import described, edit, fake_run, resample, write_lines
from personae.evaluation.intervals import Interval
from personae.report.figures import legend
from personae.report.first_screen import chart
from personae.report.html import page
from personae.report.measured import Measured, difference
from personae.report.records import read_run
from personae.report.verdict import NOISE, Role, Verdict, verdict
from personae.report.wording import duration, joined, percent, size
from personae.screen.results import verdict_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = fake_run(tmp_path, clients=5, federated_rounds=5)
    described(run)
    return run


def judged(folder: Path) -> Verdict:
    return verdict(read_run(folder))


def test_a_difference_of_resamples_is_smaller_than_what_they_share(folder):
    resample(folder, {"pretrain": 0.4, "federate": 0.5, "central": 0.5}, spread=0.01)
    found = judged(folder)
    gain = found.rows[1].gain
    assert gain.value == pytest.approx(0.1)
    assert gain.interval.high - gain.interval.low < 0.08  # unpaired, about 0.28
    assert gain.beyond_noise
    assert found.best.label == "federated"
    assert found.baseline.role is Role.START
    assert found.sentences[0].startswith(
        "“federated” is the best method: it recognises 50.0% of new people at 1% false accepts, 10.0 points "
        "more than “pre-trained” (40.0%). This is not noise (95% interval "
    )


def test_noise_is_called_noise(folder):
    resample(folder, {"pretrain": 0.5, "federate": 0.505, "central": 0.52}, spread=0.05)
    found = judged(folder)
    assert NOISE in found.sentences[0]
    assert f"reaches 52.0%: {NOISE} from “federated” (+1.5 points, " in found.remarks[0]


def test_pooled_training_that_is_behind_is_said_to_be(folder):
    resample(folder, {"pretrain": 0.4, "federate": 0.7, "central": 0.5}, spread=0.01)
    assert "reaches 50.0%, 20.0 points less than “federated”" in judged(folder).remarks[0]


def test_without_resamples_nothing_is_called_noise_or_not(folder):
    sentence = judged(folder).sentences[0]
    assert "These data cannot tell whether the difference is noise." in sentence


def test_training_alone_is_the_baseline_where_it_was_tried(folder):
    """The last stage becomes one whose clients send figures alone and use models of their own."""
    described(folder, central={"federated": True, "pools_faces": False, "discloses": ["Scalars"], "label": "alone"})
    clients = {
        f"client-{at:03}": {"global/tar@1e-02": 0.4, "personal/tar@1e-02": 0.6 + at / 100, "personal/rank1": 0.5}
        for at in range(5)
    }
    event = {"event": "personal", "stage": "central", "round": 6, "clients": clients}
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps(event) + "\n")
    found = judged(folder)
    assert found.baseline.label == "alone"  # not "alone, personal": it has no other
    assert found.baseline.personal
    assert found.decisive.name == "own"
    last = read_run(folder).records["federate"].last_clients
    gains = [last[name]["personal/tar@1e-02"] - clients[name]["personal/tar@1e-02"] for name in clients]
    reach = scipy.stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    gain = next(row.gain for row in found.rows if row.label == "federated, personal")
    assert gain.value == pytest.approx(np.mean(gains))
    assert (gain.interval.low, gain.interval.high) == pytest.approx((reach.low, reach.high))


def test_personal_models_on_the_held_out_people_are_compared_with_the_shared_one(folder):
    resample(folder, {"pretrain": 0.4, "federate": 0.5, "central": 0.5}, spread=0.01)
    described(folder, central={"federated": True, "pools_faces": False, "discloses": ["Scalars"], "label": "alone"})
    rates = [0.1, 0.12, 0.14, 0.16, 0.18]
    clients = {f"client-{at:03}": {"personal/heldout/tar@1e-02": rate} for at, rate in enumerate(rates)}
    with (folder / "metrics.jsonl").open("a") as lines:
        event = {"event": "personal", "stage": "central", "round": 6, "clients": clients}
        lines.write(json.dumps(event) + "\n")
    found = judged(folder)
    assert (found.baseline.label, found.decisive.name) == ("alone", "new")
    gain = next(row.gain for row in found.rows if row.label == "federated")
    over_clients = np.std(rates, ddof=1) / math.sqrt(5) * scipy.stats.t.ppf(0.975, 4)
    people = found.best.figures["new"].interval
    expected = math.hypot(over_clients, (people.high - people.low) / 2)
    assert gain.value == pytest.approx(0.36)
    assert gain.interval.high - gain.value == pytest.approx(expected)


def test_what_left_and_how_long(folder):
    _, left, took = judged(folder).sentences
    # 5 clients, 5 rounds: weights, vectors, counts
    assert left.startswith(f"The clients sent {size(25 * (1_234_567 + 20_480 + 8))}: weights, a vector for each person")
    assert "No face left them. Only “central” had all faces in one place, for comparison." in left
    assert "15 rounds in 3 stages with 5 clients" in took


def test_best_values_are_marked_and_pooled_ones_are_not(folder):
    resample(folder, {"pretrain": 0.4, "federate": 0.5, "central": 0.9}, spread=0.01)
    found = judged(folder)
    assert found.headings == ("new people", "own people", "worst client", "sent")
    marked = {row.label for row in found.rows if row.best[0]}
    assert marked == {"federated"}
    assert [row.cells[-1] for row in found.rows if row.label == "central"] == ["all faces"]


@pytest.mark.parametrize("width", [64, 80])
def test_the_table_has_methods_as_rows_and_fits_the_console(folder, width):
    console = Console(width=width, record=True, file=io.StringIO())
    described(folder, federate={"label": "a rather long name of a federated method [red]x[/nothing] (FedPE)"})
    console.print(verdict_table(judged(folder)))
    text = console.export_text()
    assert "[red]x[/nothing]" in text.replace("\n", " ") or width < 80
    assert max(map(len, text.splitlines())) <= width
    assert all(heading in text for heading in ("new people", "own people", "worst client", "sent"))


def test_a_run_without_figures(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = judged(tmp_path)
    assert found.sentences == ("Nothing has been evaluated yet.",)
    assert (found.rows, found.best) == ((), None)


def test_pooled_training_alone_is_no_method_and_has_its_figure(folder):
    resample(folder, {"pretrain": 0.4, "federate": 0.3, "central": 0.2}, spread=0.01)
    described(folder, **{stage: {"pools_faces": True, "federated": False} for stage in ("pretrain", "federate")})
    found = judged(folder)
    assert found.best is None
    assert found.sentences[0] == (
        "“pre-trained” recognises 40.0% of new people at 1% false accepts, with all faces in one place. "
        "There is no method beside it."
    )


def test_of_faces_without_labels_no_figure_says_how_good_a_model_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    event = {"event": "round", "stage": "cluster", "round": 1, "participants": ["a"], "rejected": {}, "failed": {}}
    write_lines(tmp_path / "metrics.jsonl", [event | {"scalars": {}, "clients": {"a": {"clusters/number": 3.0}}}])
    assert judged(tmp_path).sentences[0].startswith("Nobody says who is on these photographs")


def test_differences_by_hand():
    one, other = Measured.over_clients({"a": 0.5, "b": 0.7}), Measured.over_clients({"a": 0.4, "b": 0.4, "c": 1.0})
    assert difference(one, other).value == pytest.approx(0.2)  # of those that both have
    assert difference(Measured(0.5), Measured(0.4)).interval is None
    assert difference(Measured.over_clients({"a": 0.5}), Measured.over_clients({"a": 0.4})).interval is None
    drawn = difference(Measured(0.5, (0.5, 0.6)), Measured(0.4, (0.4, 0.3)))
    assert (drawn.interval.low, drawn.interval.high) == pytest.approx((0.1, 0.3))
    assert Measured.mean([Measured(0.2, (0.1, 0.3)), Measured(0.4, (0.5, 0.3))]) == Measured(
        pytest.approx(0.3), pytest.approx((0.3, 0.3))
    )
    assert Measured(0.3, (0.1,) * 99).interval == Interval(0.1, 0.1)


def test_numbers_as_people_say_them():
    assert [percent(rate) for rate in (1, 0.1, 1e-2, 1e-3, 5e-4, 1e-6)] == [
        "100%", "10%", "1%", "0.1%", "0.05%", "0.0001%",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.44, 12.6, 59.7, 60, 200, 7500)] == [
        "0.4 s", "13 s", "1 min", "1 min", "3 min 20 s", "2 h 5 min",
    ]  # fmt: skip
    assert [joined(items) for items in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def test_a_stage_in_which_clients_only_tune_is_of_the_method_before_it(folder):
    """Its shared model is that of the stage before, so only the personal ones are its own."""
    resample(folder, {"pretrain": 0.4, "federate": 0.5, "central": 0.5}, spread=0.01)
    for name in ("central", "federate"):
        edit(folder, name, lambda result: result.update(metrics={"tar@1e-02": 0.5}, resampled={}))
    described(folder, central={"pools_faces": False, "discloses": [], "label": "tuned", "after": "federate"})
    clients = {f"client-{at:03}": {"personal/tar@1e-02": 0.9, "global/tar@1e-02": 0.5} for at in range(5)}
    federated = {name: {"global/tar@1e-02": 0.5} for name in clients}
    with (folder / "metrics.jsonl").open("a") as lines:
        for stage, figures in (("federate", federated), ("central", clients)):
            event = {"event": "personal", "stage": stage, "round": 9, "clients": figures}
            lines.write(json.dumps(event) + "\n")
    found = judged(folder)
    assert [(row.label, row.role) for row in found.rows] == [
        ("pre-trained", Role.START),
        ("federated", Role.TOGETHER),
        ("tuned", Role.TOGETHER),
    ]
    assert found.baseline.label == "pre-trained"


def test_weights_that_were_given_are_the_baseline_of_what_began_with_them(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"weights": "published.safetensors"}))
    described(folder, pretrain={"federated": True, "discloses": ["ModelState"], "label": "first"})
    before = read_run(folder).records["pretrain"].benchmarks[0]["heldout/tar@1e-02"]
    found = judged(folder)
    assert found.baseline.label == "the given weights"
    assert found.baseline.figures["new"].value == before
    assert "“the given weights” recognises 13.0%. These data cannot tell whether" in found.sentences[0]
    assert "the given weights" in page(read_run(folder))


def test_no_method_is_called_the_best_where_it_is_behind_what_was_given(folder):
    """The full evaluation of the given weights also tells whether that is noise."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"weights": "published.safetensors"}))
    described(folder, pretrain={"federated": True, "discloses": ["ModelState"], "label": "first"})
    resample(folder, {"pretrain": 0.4, "federate": 0.5, "central": 0.6}, spread=0.01)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    start = next(line for line in lines if line["event"] == "global" and line["round"] == 0)
    start["metrics"]["heldout/tar@1e-02"] = 0.9
    write_lines(folder / "metrics.jsonl", lines)
    given = json.loads((folder / "evaluation" / "pretrain.json").read_text())
    heldout = given["benchmarks"]["heldout"]
    heldout["resampled"]["tar@1e-02"] = [0.5 + each for each in heldout["resampled"]["tar@1e-02"]]
    (folder / "evaluation" / "given").mkdir()
    (folder / "evaluation" / "given" / "pretrain.json").write_text(json.dumps(given))
    assert (
        judged(folder)
        .sentences[0]
        .startswith(
            "No method is better than “the given weights”: it recognises 90.0% of new people at 1% false accepts, "
            "40.0 points more than “federated” (50.0%). This is not noise (95% interval "
        )
    )


def test_own_models_are_told_beside_the_given_weights_where_no_stage_shares_a_model(folder):
    """The page is whole, although no stage has benchmarks of a model of its own."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"weights": "published.safetensors"}))
    described(folder, federate={"label": "personal", "discloses": ["Scalars"]})
    summary = json.loads((folder / "summary.json").read_text())
    alone = [stage for stage in summary["stages"] if stage["name"] == "federate"]
    (folder / "summary.json").write_text(json.dumps(summary | {"stages": alone}))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_lines(folder / "metrics.jsonl", [line for line in lines if line["stage"] == "federate"])
    for place in (folder / "evaluation").iterdir():
        if place.stem != "federate":
            place.unlink()
    for name in ("timing", "ledger"):
        records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        write_lines(folder / f"{name}.jsonl", [line for line in records if line["stage"] == "federate"])
    run = read_run(folder)
    found = verdict(run)
    assert [row.label for row in found.rows] == ["the given weights", "personal"]
    first = run.records["federate"].first_clients
    expected = statistics.mean(figures["global/tar@1e-02"] for figures in first.values())
    assert found.models[0].figures["own"].value == pytest.approx(expected)
    assert "the given weights" in page(run)


def test_a_method_has_one_colour_in_the_chart_and_in_the_legend(folder):
    run = read_run(folder)
    series = {row.label: row.series for row in chart(run, verdict(run)).rows}
    colours = {key.label: key.colour for key in legend(run)}
    assert {label: f"var(--series-{number})" for label, number in series.items()} == colours
