"""Commands that need no model answer without importing what models need, which takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from facefiles import picture
from killing import TINY
from personae.cli import app
from personae.commands.catalogue import Catalogue
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct

HEAVY = {"torch", "scipy", "sklearn", "matplotlib", "pyarrow", "flwr", "pandas"}
PROBE = """
import json, sys
from personae import cli
sys.argv = ["personae", *json.loads(sys.argv[1])]
code = 0
try:
    cli.main()
except SystemExit as end:
    code = end.code
print()
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def imported(*words: str) -> tuple[int, set[str]]:
    """The exit code of a command, and what it imported."""
    ended = subprocess.run([sys.executable, "-c", PROBE, json.dumps(words)], capture_output=True, text=True, check=True)
    code, names = json.loads(ended.stdout.splitlines()[-1])
    return code, set(names)


def test_help_imports_nothing_heavy():
    code, names = imported("--help")
    assert (code, names & HEAVY) == (0, set())
    assert "numpy" not in names


@pytest.mark.parametrize(
    ("text", "more"),
    [(None, []), ("name =", []), ("[variants]", ["--variant", "none"]), ("", ["--set", "nonsense"])],
)
def test_what_is_wrong_with_the_text_of_an_experiment_is_told_at_once(
    tmp_path: Path, text: str | None, more: list[str]
):
    path = tmp_path / "exp.toml"
    if text is not None:
        path.write_text(text)
    code, names = imported("run", str(path), *more)
    assert (code, names & HEAVY) == (2, set())


@pytest.mark.parametrize(("algorithm", "heavy"), [("marginn = 3", set()), ("margin = 3", {"torch"})])
def test_keys_of_algorithms_are_checked_without_pytorch_and_values_with_it_alone(
    tmp_path: Path, algorithm: str, heavy: set[str]
):
    path = tmp_path / "exp.toml"
    path.write_text(f'name = "x"\n[[stages]]\nname = "a"\nalgorithm = {{ name = "fedpe", {algorithm} }}\n')
    code, names = imported("run", str(path))
    assert (code, names & HEAVY) == (2, heavy)


def test_faces_are_inspected_without_pytorch(tmp_path: Path):
    for person in range(2):
        (tmp_path / "faces" / f"p{person}").mkdir(parents=True)
        (tmp_path / "faces" / f"p{person}" / "a.jpg").write_bytes(picture(person, "JPEG", 112))
    code, names = imported("data", "inspect", str(tmp_path / "faces"))
    assert (code, names & HEAVY) == (0, set())


def test_a_report_is_drawn_without_pytorch(faces_cache: Path, tmp_path: Path):
    """What a report needs of a run is in its records, which say what the kinds of payload mean, too."""
    experiment = load_experiment("quick", [*TINY, "stages.pretrain.rounds=1", "stages.federate.rounds=1"])
    conduct(experiment.model_copy(update={"stages": experiment.stages[:2]}), tmp_path, Execution(cache=faces_cache))
    code, names = imported("report", str(tmp_path))
    assert (code, names & HEAVY) == (0, {"scipy"})
    assert (tmp_path / "report.html").is_file()


def test_the_catalogue_lists_what_the_modules_have():
    """It reads their text; what they say once they are imported is the same."""
    catalogue = Catalogue()
    group = typer.main.get_command(app)
    assert list(group.list_commands(None)) == list(catalogue)  # type: ignore[attr-defined, arg-type]
    assert {"demo", "run", "report", "gallery", "data"} <= set(catalogue)
    for place in {entry.module for entry in catalogue.entries.values()}:
        module = __import__(f"personae.commands.{place}", fromlist=["app"])
        found = typer.main.get_group(module.app).commands
        listed = {name: entry.summary for name, entry in catalogue.entries.items() if entry.module == place}
        assert {name: command.help for name, command in found.items()} == listed
