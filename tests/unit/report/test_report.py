import json
import math
import re
import shutil
from dataclasses import asdict

import numpy as np
import pytest

from fakeruns import Page, described, fake_run, final_scores, write_lines
from personae.errors import ConfigError, DataError
from personae.evaluation.curves import sweep
from personae.report.figures import legend, operating_points, per_client, progress, score_distributions
from personae.report.html import write_report
from personae.report.plots import Key, Line, client_bars, curves, thin
from personae.report.records import read_run
from personae.report.sections import faces, results
from personae.report.table import comparison
from personae.report.verdict import verdict

HOSTILE = '<script>alert("x")</script> & $\\frac{1}{2}$ 人'


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = fake_run(tmp_path_factory.mktemp("finished") / "run")
    write_report(folder)
    return folder


def read(folder):
    return Page((folder / "report.html").read_text())


def test_the_page_is_well_formed_and_complete(finished):
    page = read(finished)
    titles = ("The methods", "What left the clients", "Results by benchmark", "Clients", "Curves", "ROC", "Scores")
    for title in (*titles, "Fairness", "Traffic", "Timing", "Configuration", "Words"):
        assert title in page.words
    assert page.tags.count("h1") == 1
    # Loss, 5 benchmark metrics, 2 client metrics, 2 ROCs, 3 x 2 histograms, 2 bar charts.
    assert page.tags.count("figure") == 18
    assert len(page.ids) == len(set(page.ids))


def test_everything_but_the_verdict_is_folded(finished):
    text = (finished / "report.html").read_text()
    assert text.count("<details") > 10
    assert "<details open" not in text
    before = text[: text.index("<details")]
    assert "There is no other method to compare it with." in before
    assert '<nav class="contents"' in before


def test_words_of_the_field_explain_themselves(finished):
    text = (finished / "report.html").read_text()
    targets = set(re.findall('popovertarget="([^"]+)"', text))
    assert {"term-tar", "term-far", "term-heldout", "term-worst-tenth"} <= targets
    assert targets <= set(read(finished).ids)
    assert "FNMR = 1 - TAR" in read(finished).words


def test_one_switch_for_the_metric_and_one_legend(finished):
    text = (finished / "report.html").read_text()
    assert text.count('type="radio"') == len(set(re.findall('of-metric-([0-9]+)"', text)))
    assert text.count(" checked") == 1
    assert "1e-0" not in "".join(re.findall("<h2.*?</h2>|<th.*?</th>|<figcaption.*?</figcaption>", text))
    page = read(finished)
    legends = [value for name, value in page.attributes if (name, value) == ("class", "legend")]
    assert len(legends) == 1 + 6  # one for all methods, and one for each histogram's kinds of pairs


def test_a_stage_without_a_shared_model_is_drawn_as_personal_models_alone(tmp_path):
    """Its benchmarks are of the model from before: they are nothing to show a second time."""
    folder = fake_run(tmp_path)
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for event in events:
        for figures in event.get("clients", {}).values():
            figures |= {"personal/heldout/accuracy": 0.7, "personal/heldout/accuracy_std": 0.01}
    write_lines(folder / "metrics.jsonl", events)
    described(folder, federate={"label": "personal", "discloses": ["Scalars"]})
    run = read_run(folder)
    assert [(key.label, key.dash) for key in legend(run)] == [("pre-trained", 0), ("personal", 1), ("central", 0)]
    drawn = [*progress(run).figures, *operating_points(run).figures, *score_distributions(run).figures]
    assert not [figure for figure in drawn if "personal" in figure.summary and figure.title.startswith("heldout")]
    metrics = {figure.metric for figure in (*progress(run).figures, *per_client(run).figures)}
    assert "accuracy" in metrics
    assert not [metric for metric in metrics if "_std" in metric]
    titles = [figure.title.partition(":")[0] for figure in per_client(run).figures]
    assert set(titles) == {"own people", "heldout"}  # two figures of one metric say on whom
    tables = {table.head[0]: table for table in results(run, verdict(run)).tables}
    assert [row[0] for row in tables["heldout"].rows] == ["start", "pre-trained", "central"]
    assert [row[0] for row in tables["clients, own people"].rows] == ["personal"]
    assert tables["clients, heldout"].head == ["clients, heldout", "accuracy"]
    assert tables["clients, heldout"].rows == [["personal", "70.00 ± 0.00"]]


def test_there_is_no_chart_of_personal_models_that_do_not_exist(tmp_path):
    folder = fake_run(tmp_path, clients=3, federated_rounds=5)
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for event in events:
        for figures in event.get("clients", {}).values():
            figures |= {name.replace("global", "personal"): figures[name] for name in list(figures) if "global" in name}
    write_lines(folder / "metrics.jsonl", events)
    write_report(folder)
    assert "federated, personal" not in read(folder).words
    assert "federated, personal" not in " ".join(value or "" for _, value in read(folder).attributes)


def test_a_single_value_is_no_curve(tmp_path):
    folder = fake_run(tmp_path, clients=2, federated_rounds=5)
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = {"pretrain": 4, "federate": 5, "central": 6}
    write_lines(folder / "metrics.jsonl", [each for each in events if each["round"] == last[each["stage"]]])
    write_report(folder)
    assert "Curves" not in read(folder).words


def test_the_page_needs_nothing_beside_it(finished):
    page = read(finished)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "srcset") or name.startswith("on")]
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "xlink:href"))
    text = (finished / "report.html").read_text()
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert "default-src 'none'" in text


def test_references_within_the_figures_hold(finished):
    page = read(finished)
    text = (finished / "report.html").read_text()
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) <= set(page.ids)
    assert '<a href="#roc">' in text


def test_figures_take_their_colours_from_the_page(finished):
    svg = re.findall(r"<svg.*?</svg>", (finished / "report.html").read_text(), flags=re.DOTALL)
    assert not [colour for one in svg for colour in re.findall(r"#[0-9a-f]{6}\b", one)]
    assert "var(--series-1)" in svg[0]


def test_figures_are_described_in_words(finished):
    descriptions = [value for name, value in read(finished).attributes if name == "aria-label"]
    assert any(text.startswith("Training loss. pre-trained ends at ") for text in descriptions)
    assert any(text.startswith("heldout: ROC over all pairs. True accept rate at the lowest") for text in descriptions)


def test_numbers_on_the_page(finished):
    words = read(finished).words
    assert "93.60 ± 1.20" in words  # the federated model's accuracy: 0.6 + 0.7 * 0.48
    assert "296,296,080" in words  # 12 clients, 20 rounds, 1,234,567 bytes
    assert "timed out after 60 s" in words
    assert "seed 7" in words


def test_disclosure_is_visible(finished):
    words = read(finished).words
    assert "federated: vectors that stand for single people (ClassEmbeddings) left the clients" in words
    assert "central had the faces of all clients in one place" in words
    assert 'class="alarm"' in (finished / "report.html").read_text()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (["ModelState"], "federated sent what it had not declared: ClassEmbeddings."),
        ([], "federated sent what it had not declared: ClassEmbeddings, ModelState."),
        (["ModelState", "ClassEmbeddings"], None),
        (None, None),
    ],
)
def test_what_was_sent_but_not_declared_is_visible(tmp_path, declared, expected):
    (tmp_path / "config.json").write_text("{}")
    stage = {"name": "federate", "label": "federated"} | ({} if declared is None else {"discloses": declared})
    (tmp_path / "summary.json").write_text(json.dumps({"stages": [stage]}))
    sent = {"stage": "federate", "round": 1, "client": "a", "direction": "up", "bytes": 8}
    write_lines(tmp_path / "ledger.jsonl", [sent | {"payload": kind} for kind in ("ModelState", "ClassEmbeddings")])
    write_report(tmp_path)
    words = read(tmp_path).words
    assert (expected or "federated: vectors that stand for single people") in words
    assert ("had not declared" in words) == (expected is not None)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [({"discloses": []}, "Nothing left the clients."), ({}, "Not known yet: no summary says it")],
)
def test_silence_is_not_taken_for_privacy(tmp_path, stage, expected):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text(json.dumps({"stages": [{"name": "pretrain"} | stage]}))
    write_report(tmp_path)
    assert expected in read(tmp_path).words


def test_same_run_same_page(finished):
    before = (finished / "report.html").read_bytes()
    assert write_report(finished) == finished / "report.html"
    assert (finished / "report.html").read_bytes() == before


def test_strings_of_the_run_stay_strings(tmp_path):
    folder = tmp_path / "run"
    (folder / "evaluation").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"name": HOSTILE, HOSTILE: HOSTILE}))
    (folder / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    stage = {"name": HOSTILE, "label": HOSTILE, "algorithm": HOSTILE, "rounds": 1, "discloses": [HOSTILE]}
    (folder / "summary.json").write_text(json.dumps({"stages": [stage]}))
    event = {"stage": HOSTILE, "round": 1}
    personal = {HOSTILE: {"global/" + HOSTILE: 0.5, "personal/" + HOSTILE: 0.6}}
    write_lines(
        folder / "metrics.jsonl",
        [
            event
            | {"event": "round", "participants": [HOSTILE], "rejected": {HOSTILE: HOSTILE}}
            | {"failed": {HOSTILE: HOSTILE}, "scalars": {"loss": 1.0, HOSTILE: 2.0}},
            event | {"event": "global", "metrics": {f"{HOSTILE}/{HOSTILE}": 0.5}},
            event | {"event": "personal", "clients": personal},
        ],
    )
    write_lines(
        folder / "ledger.jsonl",
        [event | {"client": HOSTILE, "direction": "up", "payload": HOSTILE, "bytes": 1}],
    )
    scores = final_scores(0.3, 0)
    result = {"metrics": {HOSTILE: 0.5}, **asdict(sweep(scores))}
    final = {"stage": HOSTILE, "round": 1, "benchmarks": {HOSTILE: result}}
    (folder / "evaluation" / "stage.json").write_text(json.dumps(final))
    write_report(folder)
    page = read(folder)
    assert "script" not in page.tags
    assert page.words.count("<script>alert(") > 10


def test_suspicion_is_told_by_client_and_by_round_with_what_would_have_been(tmp_path):
    folder = fake_run(tmp_path, clients=3, federated_rounds=8)
    event = {"event": "suspicion", "stage": "federate", "left_out": {}, "drawn_back": {}}
    first = {"round": 1, "scores": {"a": 2.5}, "drawn_back": {"b": {"update": 0.25}}}
    first |= {"merged": {"step": 1.25, "separation": 0.9}, "otherwise": {"step": 5.5, "separation": 0.75}}
    second = {"round": 2, "scores": {"a": 4.5}, "left_out": {"a": "it goes against the others"}}
    second |= {"merged": {"step": 1.125, "separation": 0.91}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(event | each) + "\n" for each in (first, second))
    write_report(folder)
    words = " ".join(" ".join(read(folder).text).split())
    assert "federated a it goes against the others 4.5 1 0 –" in words
    assert "federated b – 0.0 0 1 0.25" in words
    assert "federated 1 a 2.5 – b 1.25 5.5 0.9 0.75" in words
    assert "federated 2 a 4.5 a – 1.12 – 0.91 –" in words


def test_a_run_that_has_just_begun(tmp_path):
    (tmp_path / "config.json").write_text('{"name": "new"}')
    write_report(tmp_path)
    words = read(tmp_path).words
    assert "Missing, or not written yet: environment.json, summary.json, metrics.jsonl" in words
    assert "Nothing has been evaluated yet." in words


def test_a_run_in_progress(tmp_path):
    folder = fake_run(tmp_path, clients=3, federated_rounds=8)
    shutil.rmtree(folder / "evaluation")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"central"' not in line and '"round": 8' not in line and '"round": 7' not in line]
    (folder / "metrics.jsonl").write_text("".join(kept) + '{"event": "round", "sta')
    write_report(folder)
    words = read(folder).words
    assert "federated: in progress, round 6 of 8; what follows is provisional." in words
    assert "Curves" in words
    assert "ROC" not in words


def test_a_last_line_without_its_end_does_not_count(tmp_path):
    folder = fake_run(tmp_path, clients=2, federated_rounds=5)
    expected = comparison(folder)
    event = {"event": "global", "stage": "late", "round": 0, "metrics": {"heldout/rank1": 1.0}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event))
    assert comparison(folder) == expected
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n")
    assert [row.label for row in comparison(folder)] == ["start", "pre-trained", "federated", "central", "late"]


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("metrics.jsonl", "{oops}", "Invalid JSON"),
        ("metrics.jsonl", '{"event": "round", "stage": "a"}', "'round' is missing"),
        ("metrics.jsonl", '{"event": "party", "stage": "a", "round": 1}', "there is no event 'party'"),
        ("metrics.jsonl", "[]", "should be an object"),
        (
            "metrics.jsonl",
            '{"event": "personal", "stage": "a", "round": 1, "clients": {"ann": {"rank1": Infinity}}}',
            "finite number",
        ),
        (
            "ledger.jsonl",
            '{"stage": "a", "round": 1, "client": "b", "direction": "up", "bytes": 3}',
            "'payload' is missing",
        ),
        ("timing.jsonl", '{"stage": "a", "round": 1, "seconds": "x"}', "seconds: Input should be a valid number"),
    ],
)
def test_a_corrupt_line_is_named(tmp_path, name, line, reason):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text("\n".join([line, line, ""]))
    with pytest.raises(DataError, match=rf"{name}, line 1, cannot be read: .*{reason}"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_corrupt_file_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text('{"stages": [{}]}')
    with pytest.raises(DataError, match=r"summary\.json: this file is damaged \('name' is missing\)"):
        write_report(tmp_path)


@pytest.mark.parametrize("stages", [[{}], [1], "one", True, [{"name": 1}]])
def test_settings_without_stages_are_named_by_their_file(tmp_path, stages):
    (tmp_path / "config.json").write_text(json.dumps({"stages": stages}))
    with pytest.raises(DataError, match=r"config\.json: this file is damaged"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("roc", {"far": [0.1], "tar": []}),
        ("roc", {"far": [[1]], "tar": [0.1]}),
        ("histogram", {"edges": [0, 1], "genuine": [0, 1], "impostor": [0]}),
        ("histogram", {"edges": [], "genuine": [], "impostor": []}),
        ("metrics", {"tar@1e-02": "high"}),
        ("resampled", {"tar@1e-02": [[1]]}),
        ("resampled", []),
    ],
)
def test_figures_that_cannot_be_drawn_are_named_by_their_file(tmp_path, part, values):
    curves = {"roc": {"far": [], "tar": []}, "histogram": {"edges": [0, 1], "genuine": [0], "impostor": [0]}}
    result = {"metrics": {}, **curves, part: values}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "one.json").write_text(json.dumps({"stage": "one", "benchmarks": {"heldout": result}}))
    with pytest.raises(DataError, match=r"one\.json: this file is damaged"):
        write_report(tmp_path)


@pytest.mark.parametrize("rate", ["often", "0", "nan", ""])
def test_a_figure_of_no_rate_is_shown_and_decides_nothing(tmp_path, rate):
    """Of a benchmark of somebody's own, or of a damaged file."""
    folder = fake_run(tmp_path)
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for event in events:
        for figures in event.get("clients", {}).values():
            figures |= {f"{name.partition('/')[0]}/tar@{rate}": 0.5 for name in list(figures)}
    write_lines(folder / "metrics.jsonl", events)
    before = verdict(read_run(folder)).decisive
    write_report(folder)
    assert before is None or before.metric != f"tar@{rate}"


def test_a_kind_of_payload_that_is_not_described_in_words_is_named_by_its_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    words = {"meaning": "counts", "short": None, "is_template": False, "is_figure": True}
    (tmp_path / "summary.json").write_text(json.dumps({"stages": [], "payloads": {"Count": words}}))
    with pytest.raises(DataError, match=r"summary\.json: this file is damaged \(Count\.short: .*valid string\)"):
        write_report(tmp_path)


@pytest.mark.parametrize("after", [True, "other", "one"])
def test_a_stage_after_none_that_is_there_is_named_by_its_file(tmp_path, after):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text(json.dumps({"stages": [{"name": "one", "after": after}]}))
    with pytest.raises(DataError, match=rf"summary\.json: this file is damaged \(there is no stage '{after}' to go on"):
        write_report(tmp_path)


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="give the folder of a run"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_comparison(finished):
    rows = comparison(finished)
    assert [row.label for row in rows] == ["start", "pre-trained", "federated", "central"]
    assert rows[0].metrics["heldout/rank1"] == 0.1
    federated = rows[2].metrics
    assert federated["heldout/accuracy"] == pytest.approx(0.936)
    events = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "personal"][-1]["clients"].values()
    personal = np.array([client["personal/rank1"] for client in last])
    assert federated["clients/personal/rank1"] == pytest.approx(personal.mean())
    assert federated["clients/personal/rank1_std"] == pytest.approx(personal.std())
    assert "clients/personal/rank1" not in rows[3].metrics


def test_where_nobody_has_a_model_of_its_own_the_global_one_is_shown_once(tmp_path):
    folder = fake_run(tmp_path, clients=3, federated_rounds=5)

    def without_personal_models(event):
        for figures in event.get("clients", {}).values():
            figures |= {name.replace("global", "personal"): figures[name] for name in list(figures) if "global" in name}
        return event

    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_lines(folder / "metrics.jsonl", map(without_personal_models, events))
    names = {name for name in comparison(folder)[2].metrics if name.startswith("clients/")}
    assert names == {f"clients/global/{name}" for name in ("rank1", "rank1_std", "tar@1e-02", "tar@1e-02_std")}


def test_thinning_keeps_both_ends():
    assert thin(5).tolist() == [0, 1, 2, 3, 4]
    kept = thin(100_000)
    assert (len(kept), kept[0], kept[-1]) == (200, 0, 99_999)
    assert thin(1).tolist() == [0]


def test_values_that_are_not_numbers_do_not_break_figures():
    line = Line(Key("loss", 0), [0, 1, 2], [1.0, math.nan, math.inf])
    assert "<svg" in curves([line], "loss", percent=False)
    assert "<svg" in client_bars("b", ["x", "y"], {Key("global", 0): [math.nan, 0.5]})


@pytest.mark.parametrize("value", [7.0, -3.0, 1e15])
def test_clients_that_send_what_is_no_rate_do_not_break_figures(tmp_path, value):
    folder = fake_run(tmp_path, clients=3, federated_rounds=15)
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for event in events:
        for figures in event.get("clients", {}).values():
            figures["global/odd"] = value
    write_lines(folder / "metrics.jsonl", events)
    assert "clients, own images (mean ± deviation): odd" in [each.title for each in progress(read_run(folder)).figures]
    write_report(folder)


def test_a_large_run_gives_a_small_page(tmp_path):
    folder = fake_run(tmp_path, clients=1000, federated_rounds=10, personal_every=5)
    # The other 490 rounds, of which the report reads the totals only.
    with (folder / "metrics.jsonl").open("a") as metrics, (folder / "ledger.jsonl").open("a") as transfers:
        for number in range(11, 501):
            event = {"stage": "federate", "round": number}
            failed = {f"client-{client:03}": f"timed out after {number} s" for client in range(0, 1000, 50)}
            done = event | {"event": "round", "participants": [], "rejected": {}, "failed": failed}
            metrics.write(json.dumps(done | {"scalars": {"loss": 1 / number}}) + "\n")
            results = {"heldout/accuracy": 0.9, "heldout/rank1": number / 500}
            metrics.write(json.dumps(event | {"event": "global", "metrics": results}) + "\n")
            sent = {"client": "client-000", "direction": "up", "payload": "ModelState", "bytes": 10**9}
            transfers.write(json.dumps(event | sent) + "\n")
    write_report(folder)
    assert (folder / "report.html").stat().st_size < 1_500_000
    words = read(folder).words
    assert "share of the clients, worst first" in words
    assert "rarer entries are left out; metrics.jsonl has them all" in words


def test_faces_from_files_are_not_told_of_as_if_they_were_synthetic(tmp_path):
    folder = fake_run(tmp_path / "run")
    sources = {"private": {"source": "faces", "images": 20, "domain": "studio"}, "heldout": {"source": "synthetic"}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"data": sources}))
    (table,) = faces(read_run(folder)).tables
    assert (table.head, table.rows[0]) == (["faces", "source"], ["private", "faces"])
