"""Forgetting and purging as a user types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from killing import RECIPE, SETTINGS
from personae import cli
from personae.experiment.config import load_experiment
from personae.experiment.run import run_experiment


def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["personae", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    heard: Any = capsys.readouterr()
    code: Any = ended.value.code
    return code or 0, heard.out + heard.err


def test_a_client_is_forgotten_logged_and_purged(
    tmp_path: Path, faces_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    run = tmp_path / "run"
    run_experiment(load_experiment(RECIPE, SETTINGS), run)

    code, text = typed(capsys, monkeypatch, "forget", run, "client-01")
    assert (code, "did you mean client-0" in text) == (2, True)
    code, text = typed(capsys, monkeypatch, "forget", run, "client-001", "--dry-run", "--json")
    planned = json.loads(text)
    assert (code, planned["trained_again"], planned["taken_over"]) == (0, ["federate", "central"], {"pretrain": 2})
    assert f"{run}/private/client-001" in {trace["place"] for trace in planned["traces"]}
    code, text = typed(capsys, monkeypatch, "forget", run, "--verify")
    assert code == 2
    assert "made to forget nobody" in text

    code, text = typed(capsys, monkeypatch, "forget", run, "client-001", "--workers", 1)
    assert code == 0, text
    assert "has forgotten client-001: exact: trained again without it: federate, central" in text
    code, text = typed(capsys, monkeypatch, "forget", run, "--verify", "--json")
    checked = json.loads(text)
    assert [entry["client"] for entry in checked["entries"]] == ["client-001"]
    assert checked["models_as_logged"]

    code, text = typed(capsys, monkeypatch, "purge", run, "--older-than", "0d", "--dry-run")
    assert (code, (run / "checkpoints").exists()) == (0, True)
    assert "would be deleted" in text
    code, text = typed(capsys, monkeypatch, "purge", run, "--older-than", "0d", "--json")
    assert {item["kind"] for item in json.loads(text)["items"]} == {"checkpoints", "private"}
    assert not (run / "checkpoints").exists()
    assert not (run / "private").exists()
    code, text = typed(capsys, monkeypatch, "purge", tmp_path / "nowhere")
    assert (code, "there is no such folder" in text) == (2, True)

    code, text = typed(capsys, monkeypatch, "forget", run, "client-002", "--workers", 1)  # from the beginning, then
    assert code == 0, text
    assert "pretrain, federate, central" in text
