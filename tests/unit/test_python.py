"""Personae from Python: paths as strings, what a run gives back, and who may watch and stop it."""

import inspect
import json
import sys
import typing
from collections.abc import Mapping
from dataclasses import asdict
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import personae
from killing import SETTINGS, results
from personae import ConfigError, RunResult, StopRun, load_experiment, load_model, run_experiment
from personae.core.events import Event

Events = list[Event]


@pytest.fixture(scope="module")
def heard() -> Events:
    """What a callback of the run was told."""
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, faces_cache: Path, heard: Events) -> RunResult:
    out = str(tmp_path_factory.mktemp("runs") / "whole")
    experiment = load_experiment("quick", SETTINGS)
    return run_experiment(experiment, out, cache=str(faces_cache), callbacks=[heard.append])


def test_whatever_takes_a_path_takes_a_string() -> None:
    functions = [each for name in personae.__all__ if inspect.isfunction(each := getattr(personae, name))]
    takers = [
        (function.__name__, kinds)
        for function in functions
        for name, hint in typing.get_type_hints(function).items()
        if name != "return" and Path in (kinds := _parts(hint))
    ]
    assert len(takers) > 10
    assert [name for name, kinds in takers if str not in kinds] == []


def _parts(hint: Any) -> set[Any]:
    inside = [part for part in typing.get_args(hint) if not isinstance(part, list)]
    return set(inside).union(*map(_parts, inside)) if inside else {hint}


def test_a_result_has_every_figure_by_stage_round_and_client(run: RunResult) -> None:
    events = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    found = {(each.stage, each.round, each.client, each.metric): each.value for each in run.figures}
    for event in events:
        place = event["stage"], event["round"]
        by_client = event.get("clients", {None: event.get("metrics", event.get("scalars"))})
        for client, metrics in by_client.items():
            for metric, value in metrics.items():
                assert found.pop((*place, client, metric)) == value
    assert not found
    assert len({each.client for each in run.figures} - {None}) == 4


def test_a_result_has_the_models_and_the_report(
    run: RunResult, faces_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    assert run.finished
    assert run.stages == ("pretrain", "federate", "central")
    assert run.report == run.folder / "report.html"
    assert run.model("federate").digest == load_model(str(run.folder / "models" / "federate.safetensors")).digest
    assert run.model().digest == run.model("central").digest != run.model("federate").digest
    personal = run.model("federate", client="client-003")  # FedPE gives everybody the shared one
    assert personal.digest == run.model("federate").digest
    faces = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    assert run.model("pretrain").embedder(faces).shape == (1, 8)
    assert repr(run) == f"RunResult({str(run.folder)!r})"


def test_a_notebook_shows_the_report(run: RunResult) -> None:
    shown = run._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert unescape(shown.split('"')[1]) == run.report.read_text()


def test_a_frame_has_a_row_for_each_figure(run: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns)))
    rows, columns = run.frame()
    assert rows == [asdict(figure) for figure in run.figures]
    assert columns == ["stage", "round", "client", "metric", "value"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pip install 'personae\[pandas\]'"):
        run.frame()


def test_callbacks_are_told_what_was_written_down(run: RunResult, heard: Events) -> None:
    assert [event.line() for event in heard] == (run.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def test_a_callback_may_stop_a_run_and_it_goes_on_to_the_same_bits(
    run: RunResult, tmp_path: Path, faces_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: Events = []

    def impatient(event: Mapping[str, Any]) -> None:
        heard.append(event)
        if (event.stage, event.round) == ("federate", 2):
            raise StopRun

    experiment, out = load_experiment("quick", SETTINGS), tmp_path / "run"
    stopped = run_experiment(experiment, out, cache=faces_cache, callbacks=[impatient])
    assert not stopped.finished
    assert stopped.report.is_file()
    assert stopped.model().digest == run.model("pretrain").digest
    assert (heard[-1].stage, heard[-1].round) == ("federate", 2)
    assert {each.round for each in stopped.figures if each.stage == "federate"} >= {1, 2}  # the round counts
    _without_report(monkeypatch)
    assert run_experiment(experiment, out, cache=faces_cache, resume=True).finished
    assert results(out) == results(run.folder)


def test_other_errors_of_a_callback_are_not_swallowed(tmp_path: Path, faces_cache: Path) -> None:
    def broken(event: Mapping[str, Any]) -> None:
        raise ZeroDivisionError(event.stage)

    with pytest.raises(ZeroDivisionError, match="pretrain"):
        run_experiment(load_experiment("quick", SETTINGS), tmp_path / "run", cache=faces_cache, callbacks=[broken])


def test_progress_is_shown_when_asked_for(
    tmp_path: Path, faces_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_report(monkeypatch)
    experiment = load_experiment("quick", SETTINGS)

    def enough(event: Mapping[str, Any]) -> None:
        if event.stage == "federate":
            raise StopRun

    for asked in (False, True):
        out = tmp_path / str(asked)
        run_experiment(experiment, str(out), cache=faces_cache, progress=asked, callbacks=[enough])
        captured = capsys.readouterr()
        assert ("stage 1 of 3, pre-trained, round" in captured.err) is asked
        assert captured.out == ""


def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than such a run."""
    monkeypatch.setattr("personae.experiment.run.write_report", lambda folder: folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the folder of a run"):
        RunResult(str(tmp_path))
