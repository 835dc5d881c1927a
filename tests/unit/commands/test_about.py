"""What personae says of itself: its version, its extras, its algorithms, and completion for a shell."""

import importlib.metadata
import json
import re
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner, Result

from personae import ALGORITHMS, ConfigError, doctor
from personae.algorithms import AVAILABLE
from personae.cli import app
from personae.core.acceleration import Acceleration
from personae.experiment.parameters import first_line, parameters
from personae.experiment.rundir import environment
from personae.layers import LAYERS


def personae(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **environment}, prog_name="personae")


def test_it_says_its_version() -> None:
    assert personae("--version").stdout == f"personae {importlib.metadata.version('personae')}\n"


def _uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("personae.version.version_of", missing)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.metadata, "metadata", missing)


def test_a_source_tree_that_was_never_installed_says_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _uninstalled(monkeypatch)
    for call in (lambda: environment("cpu", 1, Acceleration()), lambda: _raise(personae("--version").exception)):
        with pytest.raises(ConfigError, match=r"never installed here.*pip install --editable") as said:
            call()
        assert "\n" not in str(said.value)
    (of_itself,) = [finding for finding in doctor.examine() if finding.subject == "personae"]
    assert (of_itself.state, of_itself.good) == ("missing", False)
    assert "pip install" in of_itself.advice


def _raise(error: BaseException | None) -> None:
    assert error is not None
    raise error


def test_the_doctor_lists_every_extra_with_versions_or_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "faiss-cpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.5" if name == "flwr" else "99.0" if name == "onnx" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = {finding["subject"]: finding for finding in json.loads(personae("doctor", "--json").stdout)}
    extras = importlib.metadata.metadata("personae").get_all("Provides-Extra") or []
    assert {f"extra {name}" for name in extras} == {name for name in found if name.startswith("extra ")}
    assert found["extra faiss"]["state"] == "no faiss-cpu"
    assert found["extra faiss"]["advice"] == "pip install 'personae[faiss]'"
    assert found["extra flower"]["state"].startswith("flwr 1.5, not ")
    assert found["extra flower"]["advice"] == "pip install 'personae[flower]'"
    assert found["extra onnx"]["state"].startswith("onnx 99.0, onnxruntime ")
    assert found["extra onnx"]["advice"] == ""
    assert "pip install 'personae[faiss]'" in personae("doctor", OMP_WAIT_POLICY="PASSIVE").stdout


def test_the_doctor_ends_with_a_verdict() -> None:
    assert personae("doctor", OMP_WAIT_POLICY="PASSIVE").stdout.splitlines()[-1].startswith("this machine is ready")
    assert personae("doctor", OMP_WAIT_POLICY="ACTIVE").stdout.splitlines()[-1] == "look at: OMP_WAIT_POLICY"


def test_a_misspelt_command_gets_one_suggestion() -> None:
    assert personae("rnu").stderr.count("run") == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("personae run qui", "quick"),
        ("personae init fedgc/s", "fedgc/small fedgc/strength"),
        ("personae doc", "doctor"),
    ],
)
def test_a_shell_completes_commands_recipes_and_algorithms(typed: str, offered: str) -> None:
    last = str(len(typed.split()) - 1)
    ended = personae(_PERSONAE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=last)
    assert ended.stdout.split() == offered.split()
    assert "--install-completion" in personae("--help").stdout


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_parameter_of_every_algorithm_has_words(name: str) -> None:
    found = parameters(ALGORITHMS[name])
    assert [each.key for each in found if len(each.meaning.split()) < 3] == []
    assert [each.key for each in found if not each.kind] == []
    shown = personae("algorithms", name).stdout
    assert all(re.search(rf"^\s+{re.escape(each.key)}\s", shown, re.MULTILINE) for each in found)


@pytest.mark.parametrize("name", LAYERS)
def test_every_setting_of_every_layer_has_words(name: str) -> None:
    found = parameters(LAYERS[name])
    assert [each.key for each in found if len(each.meaning.split()) < 3 or not each.kind] == []
    shown = personae("layers", name).stdout
    assert all(re.search(rf"^\s+{re.escape(each.key)}\s", shown, re.MULTILINE) for each in found)
    assert [each["key"] for each in json.loads(personae("layers", name, "--json").stdout)] == [x.key for x in found]


@pytest.mark.parametrize(("command", "known"), [("algorithms", AVAILABLE), ("layers", LAYERS)])
def test_a_list_has_one_line_for_each_name(command: str, known: Mapping[str, type]) -> None:
    listed = personae(command).stdout.splitlines()
    for name, kind in known.items():
        (line,) = [line for line in listed if line.split()[:1] == [name]]
        assert first_line(kind)[:40] in line
    assert f"personae {command} NAME explains one of them" in listed[-1]


def test_layers_are_listed_with_their_defaults_as_json() -> None:
    assert json.loads(personae("layers", "--json").stdout)["clip"] == {"norm": None}
    refused = personae("layers", "clipp").exception
    assert isinstance(refused, ConfigError)
    assert "there is no layer 'clipp'; did you mean clip?" in str(refused)


def test_a_parameter_is_explained_with_type_default_and_meaning() -> None:
    found = {each["key"]: each for each in json.loads(personae("algorithms", "fedgc", "--json").stdout)}
    assert found["strength"]["kind"] == "number"
    assert found["strength"]["default"] == 20.0
    assert found["strength"]["meaning"].startswith("lambda")
    assert found["regulariser"]["kind"].startswith('"softmax"')
    assert found["lr"]["kind"] == "number, or left out"
    assert found["training.lr"]["meaning"].startswith("the learning rate")
    of_tune = {each.key: each for each in parameters(ALGORITHMS["tune"])}
    assert of_tune["training.batch_size"].default == 64  # of this algorithm, not of LocalSGD
    assert "fine-tune" in of_tune["method"].meaning  # from the class that it inherits
    of_cluster = {each.meaning: each for each in parameters(ALGORITHMS["cluster"])}
    assert any(meaning.startswith("dbscan: eps") for meaning in of_cluster)
    assert isinstance(personae("algorithms", "fedpee").exception, ConfigError)
