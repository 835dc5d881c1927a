"""Algorithms of other people: named as module:Class or registered as entry points, from the command line to the end."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from personae import ConfigError, RunResult, load_experiment
from personae.cli import app
from personae.deployment.job import Job
from personae.deployment.plan import Conditions, Plan
from personae.experiment.config import parse_experiment

METHOD = '''
"""Damped: FedPE whose server goes only part of the way.

server: theta <- theta + damping (mean - theta)
"""
from dataclasses import dataclass
from typing import ClassVar

from personae import FedPE, ModelState
from personae.algorithms.fedpe import State


@dataclass(frozen=True, kw_only=True)
class Damped(FedPE):
    """Federated averaging with a damped server."""

    name: ClassVar[str] = "damped"

    damping: float = 0.5  # how far the server goes towards the mean

    def merge(self, state, replies, server):
        mean = super().merge(state, replies, server).model
        return State(model=ModelState(mean.layout, state.model.flat.lerp(mean.flat, self.damping)))


class Nothing:
    pass
'''
EXPERIMENT = """
name = "tiny"
network = { height = 32, width = 32, embedding = 8 }
partition = { clients = 3 }
evaluation = { folds = 2, pairs_per_fold = 10 }
[data]
private = { identities = 9, images = 6 }
heldout = { first = 9, identities = 8, images = 4 }
[[stages]]
name = "federate"
algorithm = { name = "NAME", damping = 0.25, training = { epochs = 1, lr = 0.01 } }
"""


@pytest.fixture
def folder(tmp_path: Path, faces_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where somebody works who has a method of their own in a file, and the same as an installed package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mymethod.py").write_text(METHOD)
    (tmp_path / "tiny.toml").write_text(EXPERIMENT.replace("NAME", "mymethod:Damped"))
    (tmp_path / "registered.toml").write_text(EXPERIMENT.replace("NAME", "damped"))
    site = tmp_path / "site"
    (site / "theirs-1.0.dist-info").mkdir(parents=True)
    (site / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (site / "theirs-1.0.dist-info" / "entry_points.txt").write_text("[personae.algorithms]\ndamped = theirs:Damped\n")
    (site / "theirs.py").write_text(METHOD)
    before = list(sys.path)
    monkeypatch.syspath_prepend(site)
    yield tmp_path
    sys.path[:] = before
    for name in ("mymethod", "theirs"):
        sys.modules.pop(name, None)


def personae(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def elsewhere(folder: Path, *arguments: str) -> None:
    """In a process of its own, as a user calls it: nothing in this folder is on Python's path."""
    settings = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-P", "-c", "from personae.cli import main; main()", *arguments]
    ended = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_an_algorithm_of_ones_own_runs_with_workers_and_is_reported_and_exported(folder: Path) -> None:
    elsewhere(folder, "run", "tiny.toml", "--workers", "2", "--out", "run")
    assert personae("report", "run").exit_code == 0
    assert "damped" in (folder / "run" / "report.html").read_text()
    assert personae("export", "run", "--to", "model.safetensors", "--no-evaluate").exit_code == 0
    (card,) = folder.glob("model*.json")
    assert "damped" in card.read_text()


def test_a_registered_algorithm_is_known_by_its_name(folder: Path) -> None:
    assert personae("run", "registered.toml", "--workers", "1", "--out", "run").exit_code == 0
    assert RunResult("run").model().height == 32
    assert "damped Federated averaging with a damped server." in " ".join(personae("algorithms").stdout.split())
    assert "damped" in personae("disclose").stdout


def test_its_parameters_are_checked_and_explained_like_any_other(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"stages\.federate\.algorithm\.damp: there is no such key; .*damping"):
        load_experiment("tiny.toml", ["stages.federate.algorithm.damp=1"])
    told = personae("algorithms", "mymethod:Damped").stdout
    assert "FedPE whose server goes only part of the way" in told
    assert re.search(r"  damping  number; default [0-9.]+\n +how far the server goes", told)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nomodule:Damped", "nomodule:Damped cannot be imported from here: No module named 'nomodule'"),
        ("mymethod:Damp", "mymethod:Damp cannot be imported from here"),
        ("mymethod:Nothing", "mymethod:Nothing is not a subclass of personae.Algorithm"),
        ("dampd", "stages.federate.algorithm.name is 'dampd'; did you mean damped?"),
        ("a:b:c", "a:b:c"),
        (":", ":"),
        (["fedpe"], "stages.federate.algorithm.name is ['fedpe']"),
    ],
)
def test_what_is_no_algorithm_is_one_line(folder: Path, name: object, said: str) -> None:
    plain = {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"clients": 2},
        "stages": [{"name": "federate", "algorithm": {"name": name}}],
    }
    with pytest.raises(ConfigError) as refused:
        parse_experiment(plain, "mine.toml")
    assert str(refused.value).startswith("mine.toml: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_party_of_a_network_imports_what_another_one_names(folder: Path) -> None:
    mine = load_experiment("tiny.toml")
    sys.modules.pop("mymethod")
    job = Job.of("a1", mine, "exact", 10)
    with pytest.raises(ConfigError, match="'mymethod:Damped', which every client would have to import"):
        job.parsed()
    assert "mymethod" not in sys.modules
    with pytest.raises(ConfigError, match="'mymethod:Damped', which every client would have to import"):
        Plan.new(mine, ["ann", "bob", "cy"], Conditions())
    registered = load_experiment("registered.toml")
    assert Job.of("a1", registered, "exact", 10).parsed().resolved() == registered.resolved()
