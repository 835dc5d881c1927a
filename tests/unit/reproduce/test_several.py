"""Several variants of one experiment at once: each as it would be alone, and a table of them at the end."""

import json
import sys
from pathlib import Path

import pytest

from killing import TINY, results
from personae import cli
from personae.errors import ConfigError
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.reproduce.several import PAGE, run_several

FILE = """
extends = "quick"
name = "x"

[variants]
plain.until = "federate"
slow = { until = "federate", stages.federate.algorithm.training.lr = 0.01 }
wild = { until = "federate", stages.federate.algorithm.training.lr = 1e30 }
"""
ROUNDS = ["stages.pretrain.rounds=1", "stages.federate.rounds=1", "stages.federate.evaluate_every=1"]
SETTINGS = [*TINY, *ROUNDS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    return path


def variants(file: Path, *names: str) -> dict[str, Experiment]:
    return {name: load_experiment(file, SETTINGS, name) for name in names}


def test_each_has_the_bits_of_a_run_alone_and_finished_ones_are_not_repeated(
    file: Path, faces_cache: Path, tmp_path: Path
):
    out, execution, asked = tmp_path / "out", Execution(workers=2, cache=faces_cache), variants(file, "plain", "slow")
    found, failed = run_several(asked, out, execution)
    assert not failed
    assert [model.stage.name for model in found.verdict.models] == ["plain", "slow"]
    assert (out / PAGE).is_file()
    assert (out / "slow" / "report.html").is_file()
    conduct(asked["slow"], tmp_path / "alone", Execution(cache=faces_cache))
    assert results(out / "slow") == results(tmp_path / "alone")

    with pytest.raises(ConfigError, match=r"out/plain: the folder is not empty; resume these runs"):
        run_several(asked, out, execution)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    more, failed = run_several(variants(file, "plain", "slow", "wild"), out, Execution(cache=faces_cache), resume=True)
    assert list(failed) == ["wild"]
    assert [row.cells for row in more.verdict.rows] == [row.cells for row in found.verdict.rows]
    assert before.items() <= {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}.items()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--variant", "plain,slwo"], "there is no variant 'slwo'; did you mean slow?"),
        (["--variant", "plain,plain"], "name each of them once"),
        (["--variant", "plain", "--jobs", "2"], "--jobs goes with several variants"),
        (["--variant", "plain,slow", "--workers", "2"], "--workers goes with one run"),
        (["--variant", "plain,slow", "--dry-run"], "--dry-run goes with one run"),
    ],
)
def test_a_wrong_command_ends_with_one_line(
    file: Path, options: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["personae", "run", str(file), *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert line in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.slow
def test_the_command_shows_them_side_by_side_and_tells_of_one_that_diverged(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["run", str(file), "--variant", "plain,slow,wild", "--jobs", "2", "--out", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr(sys, "argv", ["personae", *words, *sets])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert ended.value.code == 4
    assert [row["run"] for row in json.loads(told.out)["runs"]] == ["plain", "slow"]
    assert "wild: not finished, and left out of the comparison" in told.err
