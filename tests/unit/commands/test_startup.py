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


EXPERIMENT = 'name = "x"\n[[stages]]\nname = "a"\nalgorithm = { name = "fedpe" }\n'


@pytest.mark.parametrize("command", ["run", "deal"])
@pytest.mark.parametrize(
    "setting",
    [
        "stages.a.algorithm.marginn=3",
        "stages.a.algorithm.margin=3",
        "stages.a.algorithm.training.lr='fast'",
        "stages.a.algorithm.training.lr=-1",
        "stages.a.algorithm.training.batch_size=0",
        "stages.a.algorithm.training.epochs=0",
        "stages.a.rounds=-1",
        "stages.a.selection={ name = 'share', share = 2 }",
        "stages.a.aggregation={ name = 'trimmed-mean', cut = 0.5 }",
        "stages.a.layers=[{ name = 'clip', norm = 0 }]",
        "firewall.norm_multiple=1",
        "partition.clients=0",
        "network.name='nosuch'",
        "network.embedding=0",
    ],
)
def test_keys_and_values_of_an_experiment_are_checked_without_pytorch(tmp_path: Path, command: str, setting: str):
    path = tmp_path / "exp.toml"
    path.write_text(EXPERIMENT)
    code, names = imported(command, str(path), "--set", setting)
    assert (code, names & HEAVY) == (2, set())


def test_what_settings_mean_together_is_checked_with_pytorch_alone(tmp_path: Path):
    path = tmp_path / "exp.toml"
    path.write_text(EXPERIMENT)
    code, names = imported("run", str(path), "--set", "stages.a.algorithm.training={ epochs = 1, iterations = 1 }")
    assert (code, names & HEAVY) == (2, {"torch"})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "quick", "--without", "nosuch"), 2),
        (("run", "quick", "--out", "{}"), 2),
        (("run", "{}/exp.toml", "--variant", "short,long", "--out", "{}"), 2),
        (("demo", "--out", "{}"), 2),
        (("join", "--server", "here:9093", "--certs", "keys", "--data", "{}/nowhere"), 3),
        (("join", "--server", "here:9093", "--certs", "keys", "--data", "{}/nowhere", "--each"), 2),
    ],
)
def test_options_and_places_are_checked_without_pytorch(tmp_path: Path, words: tuple[str, ...], code: int):
    (tmp_path / "exp.toml").write_text(EXPERIMENT + "[variants.short]\n[variants.long]\nstages.a.rounds = 2\n")
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "something.txt").touch()
    ended, names = imported(*(word.format(tmp_path) for word in words))
    assert (ended, names & HEAVY) == (code, set())


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
