"""The demo and its two variants, with a handful of people and as few rounds as they can have."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from personae import load_experiment
from personae.cli import app
from personae.errors import ConfigError
from personae.experiment.config import Experiment

FEW = [
    "network.height=32",
    "network.width=32",
    "data.private.identities=12",
    "data.private.images=10",
    "partition.clients=3",
    "data.heldout.identities=10",
    "data.heldout.images=4",
    "evaluation.folds=2",
    "evaluation.pairs_per_fold=10",
]
PUBLIC = ["data.public.identities=6", "data.public.images=4"]


def tiny(name: str) -> Experiment:
    whole = load_experiment(name)
    shorter = [f"stages.{stage.name}.rounds=1" for stage in whole.stages]
    return load_experiment(name, [*FEW, *(PUBLIC if whole.data.public else []), *shorter])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("personae.experiment.config.load_experiment", tiny)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "name", "following"),
    [([], "demo", "personae demo --all"), (["--quick"], "demo-quick", "personae demo")],
)
def test_it_ends_with_at_most_ten_lines(folder: Path, options: list[str], name: str, following: str) -> None:
    ended = CliRunner().invoke(app, ["demo", *options, "--workers", "1"])
    assert ended.exit_code == 0, ended.output
    lines = ended.stdout.splitlines()
    table = next(at for at, line in enumerate(lines) if "new people  own people" in line)
    assert [line.split("  ")[0] for line in lines[table + 1 : -1]] == [
        "each alone", "together (FedPE)", "recommended", "personal", "pooled",
    ]  # fmt: skip
    assert lines[-1].endswith(f"; report: runs/{name}/report.html; next: {following}")
    said = next(at for at, line in enumerate(lines) if " of new people, " in line)  # warnings come before
    assert len(lines) - said <= 10
    assert max(len(line) for line in lines[said:]) <= 80
    assert (folder / "runs" / name / "report.html").is_file()


def test_all_five_systems_have_a_row(folder: Path) -> None:
    ended = CliRunner().invoke(app, ["demo", "--all", "--workers", "1"])
    assert ended.exit_code == 0, ended.output
    lines = ended.stdout.splitlines()
    table = next(at for at, line in enumerate(lines) if "new people  own people" in line)
    methods = " ".join(line.split("  ")[0] for line in lines[table + 1 : -1])
    for system in ("each alone", "FedPE", "FedGC", "FedFace", "FedFR", "HF-MAML", "unsupervised FedFR", "pooled"):
        assert system in methods
    assert max(len(line) for line in lines[table:]) <= 80


def test_it_is_one_demo_at_a_time(folder: Path) -> None:
    ended = CliRunner().invoke(app, ["demo", "--all", "--quick"])
    assert isinstance(ended.exception, ConfigError)
    assert not (folder / "runs").exists()
