"""`personae compare` and `personae watch` on the command line."""

import json
import sys
from pathlib import Path

import pytest

from fakeruns import described, fake_run, resample
from personae import cli


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["personae", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def runs(tmp_path):
    for name, rate in (("one", 0.5), ("other", 0.55)):
        folder = fake_run(tmp_path / name, clients=3, federated_rounds=5)
        described(folder)
        resample(folder, {"pretrain": 0.4, "federate": rate, "central": 0.5}, spread=0.01, seed=3)
    return tmp_path / "one", tmp_path / "other"


def test_runs_side_by_side_in_eighty_columns(call, runs, tmp_path):
    code, out, _ = call("compare", *runs)
    assert code == 0
    assert "5.0 points more than “one: federated”" in out.replace("\n", " ")
    table = [line for line in out.splitlines() if "%" in line and "federated" in line and line.startswith("  ")]
    assert table
    assert max(map(len, table)) <= 80
    assert "page: comparison.html" in out
    assert (tmp_path / "comparison.html").is_file()


def test_a_comparison_for_scripts(call, runs):
    code, out, _ = call("compare", *runs, "--json", "--out", "page.html")
    found = json.loads(out)
    assert (code, found["page"]) == (0, "page.html")
    assert {row["run"] for row in found["runs"]} == {"one", "other"}
    assert found["verdict"][0].startswith("“other: federated” is the best method")


def test_one_run_is_no_comparison_and_runs_take_no_methods(call, runs):
    code, _, err = call("compare", runs[0])
    assert code == 2
    assert "is one run: a comparison takes two or more" in err.replace("\n", " ")
    code, _, err = call("compare", *runs, "--methods", "fedpe")
    assert code == 2
    assert "--methods goes with one folder of faces" in err.replace("\n", " ")


def test_watching_a_finished_run_says_so_and_leaves_a_page(call, runs):
    code, out, _ = call("watch", runs[0], "--page")
    assert code == 0
    assert out.rstrip().endswith("finished")
    assert (runs[0] / "watch.html").is_file()
    code, _, err = call("watch", runs[0].parent)
    assert code == 2
    assert "has no config.json, so it is not a run" in err
