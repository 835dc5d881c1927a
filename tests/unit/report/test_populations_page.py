"""How evenly a run serves several populations of held-out people: what it writes down, and its page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fakeruns import Page, described, fake_run
from personae.core.embedder import embed
from personae.errors import DataError
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.experiment.run import run_experiment
from personae.report.comparison import compare
from personae.report.html import page, write_report
from personae.report.populations import plain_populations, populations_section
from personae.report.records import POPULATIONS, read_run

EXPERIMENT = """
name = "two-populations"
network = { height = 32, width = 32, embedding = 8 }
partition = { clients = 2, train = 0.5, val = 0.0, test = 0.5 }
evaluation = { folds = 2, pairs_per_fold = 60, fars = [0.4, 0.2] }

[data.private]
identities = 4
images = 4

[data.heldout.parts]
valley = { people = "valley", capture = "counter", first = 50, identities = 12, images = 4 }
islands = { people = "islands", capture = "counter", first = 50, identities = 10, images = 4 }

[[stages]]
name = "train"
rounds = 2
algorithm = { name = "fedpe", training = { iterations = 1 } }
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, faces_cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("populations")
    (folder / "x.toml").write_text(EXPERIMENT)
    run_experiment(folder / "x.toml", folder / "run", cache=faces_cache)
    return folder / "run"


def scores_by_hand(run: Path, cache: Path) -> dict[str, dict[bool, list[float]]]:
    """By population, the scores of the pairs of one person (True) and of two."""
    [benchmark] = Materials(load_experiment(run.parent / "x.toml"), Execution(cache=cache)).final_benchmarks()
    vectors = torch.nn.functional.normalize(embed(load_model(run, "train").embedder, benchmark.samples).double())
    found: dict[str, dict[bool, list[float]]] = {}
    for name, pairs in benchmark.groups.items():
        found[name] = {True: [], False: []}
        for left, right, same in zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist(), strict=True):
            assert (benchmark.samples.labels[left] == benchmark.samples.labels[right]) == same
            found[name][same].append(float(vectors[left] @ vectors[right]))
    return found


@pytest.mark.parametrize(("far", "written"), [(0.4, "4e-01"), (0.2, "2e-01")])
def test_the_records_have_the_errors_ratios_and_gini_coefficients_of_the_scores(finished, faces_cache, far, written):
    scores = scores_by_hand(finished, faces_cache)
    result = json.loads((finished / "evaluation" / "train.json").read_text())["benchmarks"][POPULATIONS]
    impostors = sorted((score for of in scores.values() for score in of[False]), reverse=True)
    bound = impostors[round(far * len(impostors))]  # what is above it is accepted
    fmr = {name: sum(score > bound for score in of[False]) / len(of[False]) for name, of in scores.items()}
    fnmr = {name: sum(score <= bound for score in of[True]) / len(of[True]) for name, of in scores.items()}
    assert sum(fmr.values()) / 2 == pytest.approx(far)
    assert {name: each[f"fmr@{written}"] for name, each in result["groups"].items()} == pytest.approx(fmr)
    assert {name: each[f"fnmr@{written}"] for name, each in result["groups"].items()} == pytest.approx(fnmr)
    for name, (one, other) in {"fmr": fmr.values(), "fnmr": fnmr.values()}.items():
        assert one != other
        assert result["metrics"][f"{name}_ratio@{written}"] == pytest.approx(max(one, other) / min(one, other))
        # of two groups, the coefficient is the part that one has more than the other of the errors of both
        assert result["metrics"][f"{name}_gini@{written}"] == pytest.approx(abs(one - other) / (one + other))


def test_the_page_has_them(finished):
    result = json.loads((finished / "evaluation" / "train.json").read_text())["benchmarks"][POPULATIONS]
    section = populations_section(read_run(finished))
    errors, uneven = section.tables
    assert [row[1:5] for row in errors.rows] == [["islands", "10", "60", "60"], ["valley", "12", "60", "60"]]
    assert errors.head[-2:] == ["FNMR at FAR 20%", "FMR at FAR 20%"]
    for at, name in enumerate(("islands", "valley")):
        for cell, metric in zip(errors.rows[at][5:], ("accuracy", "fnmr@2e-01", "fmr@2e-01"), strict=True):
            rate, bounds = result["groups"][name][metric], result["intervals"][f"{name}/{metric}"]
            assert cell == f"{100 * rate:.2f} [{100 * bounds['low']:.2f}, {100 * bounds['high']:.2f}]"
    for column, metric in ((6, "fnmr@2e-01"), (7, "fmr@2e-01")):
        rates = [result["groups"][name][metric] for name in ("islands", "valley")]
        assert {row for row, at in errors.worst if at == column} == {rates.index(max(rates))}
    assert [row[1] for row in uneven.rows] == ["FAR 40%", "FAR 20%"]
    for row, far in zip(uneven.rows, ("4e-01", "2e-01"), strict=True):
        ratios = [f"{result['metrics'][f'{error}_ratio@{far}']:.2f}x" for error in ("fnmr", "fmr")]
        coefficients = [f"{result['metrics'][f'{error}_gini@{far}']:.3f}" for error in ("fnmr", "fmr")]
        assert (row[2::2], row[3::2]) == (ratios, coefficients)
    assert [title for title, _ in section.folded] == ["Errors at FAR 40%"]
    text = (finished / "report.html").read_text()
    Page(text)
    for row, column in errors.worst:
        assert f'<td class="number worst">{errors.rows[row][column]}</td>' in text
    assert uneven.rows[1][2] in text


def test_they_are_of_final_models_alone_and_no_figures_of_a_round(finished):
    assert POPULATIONS not in (finished / "metrics.jsonl").read_text()
    assert "heldout/populations" not in "".join(read_run(finished).records["train"].final_metrics)


def test_given_weights_are_evaluated_as_the_run_that_they_come_from(finished, faces_cache, tmp_path):
    (tmp_path / "x.toml").write_text(f'weights = "{finished / "models" / "train.safetensors"}"\n{EXPERIMENT}')
    run_experiment(tmp_path / "x.toml", tmp_path / "run", cache=faces_cache)
    given, after = read_run(tmp_path / "run").records["train"], read_run(finished).records["train"]
    assert given.given_populations == after.populations != given.populations


def test_a_script_gets_them_too(finished):
    [found] = json.loads(json.dumps(plain_populations(finished)))
    assert found["group_sizes"]["valley"] == {"people": 12, "genuine_pairs": 60, "impostor_pairs": 60}
    assert found["groups"].keys() == {"islands", "valley"}


def test_a_run_of_one_population_has_no_such_section(tmp_path, faces_cache):
    head, _, tail = EXPERIMENT.partition("[data.heldout.parts]")
    one = "[data.heldout]\nfirst = 50\nidentities = 12\nimages = 4\n\n"
    (tmp_path / "x.toml").write_text(head + one + tail[tail.index("[[stages]]") :])
    run_experiment(tmp_path / "x.toml", tmp_path / "run", cache=faces_cache)
    assert not populations_section(read_run(tmp_path / "run"))
    assert plain_populations(tmp_path / "run") == []
    assert "Gini" not in (tmp_path / "run" / "report.html").read_text()


def evaluated(folder: Path, stage: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Three populations in the final evaluation of a stage."""
    rates = {"inland": (0.2, 0.01), "coast": (0.4, 0.01), "hills": (0.1, 0.01)}
    result = json.loads((folder / "evaluation" / f"{stage}.json").read_text())["benchmarks"]["heldout"]
    result |= {
        "groups": {name: {"accuracy": 0.9, "fnmr@1e-02": one, "fmr@1e-02": two} for name, (one, two) in rates.items()},
        "group_sizes": {name: {"people": 30, "genuine_pairs": 3000, "impostor_pairs": 3000} for name in rates},
        "metrics": {"fnmr_ratio@1e-02": 4.0, "fnmr_gini@1e-02": 3 / 7, "fmr_gini@1e-02": 0.0},
        "intervals": {},
    }
    change(result)
    path = folder / "evaluation" / f"{stage}.json"
    content = json.loads(path.read_text())
    content["benchmarks"][POPULATIONS] = result
    path.write_text(json.dumps(content))


def unchanged(result: dict[str, Any]) -> None: ...


def test_nobody_is_worst_where_all_are_alike_and_no_ratio_is_told_of_none(tmp_path):
    run = fake_run(tmp_path)
    evaluated(run, "federate", unchanged)
    errors, uneven = populations_section(read_run(run)).tables
    assert errors.worst == {(1, 6)}
    assert list(uneven.rows) == [["federated", "FAR 1%", "4.00x", "0.429", "–", "0.000"]]


def test_what_the_weights_did_before_stands_first(tmp_path):
    run = fake_run(tmp_path)
    for stage in ("pretrain", "federate"):
        evaluated(run, stage, unchanged)
    (run / "evaluation" / "given").mkdir()
    (run / "evaluation" / "given" / "pretrain.json").write_text((run / "evaluation" / "pretrain.json").read_text())
    described(run)
    uneven = populations_section(read_run(run)).tables[1]
    assert [row[0] for row in uneven.rows] == ["the given weights", "pre-trained", "federated"]


def test_a_stage_without_a_shared_model_of_its_own_is_left_out(tmp_path):
    run = fake_run(tmp_path)
    evaluated(run, "federate", unchanged)
    described(run, federate={"discloses": ["Scalars"]})
    assert not populations_section(read_run(run))


def test_runs_are_compared_by_population(tmp_path):
    for name in ("one", "other"):
        evaluated(fake_run(tmp_path / name), "federate", unchanged)
    text = page(compare([tmp_path / "one", tmp_path / "other"]).run)
    assert "one: federated" in text
    assert text.count('<td class="text">coast</td>') == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result["group_sizes"].pop("coast"),
        lambda result: result["groups"]["coast"].update({"fnmr@1e-02": "a lot"}),
        lambda result: result.pop("group_sizes"),
    ],
)
def test_populations_that_cannot_be_read_are_named_by_their_file(tmp_path, change):
    run = fake_run(tmp_path)
    evaluated(run, "federate", change)
    with pytest.raises(DataError, match=r"federate\.json"):
        write_report(run)
