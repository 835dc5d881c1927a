"""Commands that need no model answer without importing what models need, which takes seconds."""

import json
import subprocess
import sys
from collections.abc import Sequence
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
from personae.privacy.audit import Audit, Finding, write_audit
from personae.privacy.audit.finding import known_attacks

HEAVY = {"torch", "scipy", "sklearn", "matplotlib", "pyarrow", "flwr", "pandas"}
PROBE = """
import json, sys
from personae import cli
code = 0
for words in json.loads(sys.argv[1]):
    sys.argv = ["personae", *words]
    try:
        cli.main()
    except SystemExit as end:
        code = max(code, end.code or 0)
print()
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def imported(*words: str, after: Sequence[tuple[str, ...]] = ()) -> tuple[int, set[str]]:
    """The exit code of a command, and what it imported; and the help of those that come `after` it."""
    given = json.dumps([words, *((*command, "--help") for command in after)])
    ended = subprocess.run([sys.executable, "-c", PROBE, given], capture_output=True, text=True, check=True)
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


def every_command() -> list[tuple[str, ...]]:
    found = dict(Catalogue())
    inside = [(name, each) for name, command in found.items() for each in getattr(command, "commands", ())]
    return [*((name,) for name in found), *inside]


def test_help_of_no_command_imports_anything_heavy():
    """In one process: what one of them imports is there for the next."""
    code, names = imported("--help", after=every_command())
    assert (code, names & HEAVY) == (0, set())


@pytest.mark.parametrize(
    ("command", "algorithm", "heavy"),
    [
        ("run", "marginn = 3", set()),
        ("run", "margin = 3", set()),
        ("run", "training = { lr = 'fast' }", set()),
        ("deal", "training = { lr = 'fast' }", set()),
        ("run", "training = { lr = -1.0 }", {"torch"}),
    ],
)
def test_keys_and_kinds_of_algorithms_are_checked_without_pytorch_and_values_with_it_alone(
    tmp_path: Path, command: str, algorithm: str, heavy: set[str]
):
    path = tmp_path / "exp.toml"
    path.write_text(f'name = "x"\n[[stages]]\nname = "a"\nalgorithm = {{ name = "fedpe", {algorithm} }}\n')
    code, names = imported(command, str(path))
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
    finding = Finding(attack="membership", stage="federate", target="people", figure="AUC", value=0.5, chance=0.5)
    write_audit(tmp_path, Audit(known_attacks(), (finding,)))
    for command in ("report", "dpia"):
        code, names = imported(command, str(tmp_path))
        assert (code, names & HEAVY) == (0, {"scipy"}), command
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
