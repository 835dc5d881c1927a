"""kill -9 at any place, then --resume: the result is that of a run that nobody disturbed, to the bit."""

import json
from pathlib import Path

import pytest

from killing import BEFORE_THE_FIRST_CHECKPOINT, PLACES, RECIPE, SETTINGS, go, results
from personae.errors import ConfigError, Unkept
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.run import run_experiment
from personae.experiment.rundir import RunDirectory


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load_experiment(RECIPE, SETTINGS)


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_ends_as_if_nothing_had_happened(
    undisturbed: dict[str, bytes], faces_cache: Path, tmp_path: Path, place: str
):
    assert go(tmp_path / "run", faces_cache, place=place) == -9
    assert go(tmp_path / "run", faces_cache, resume=True) == 0
    found = results(tmp_path / "run")
    assert sorted(found) == sorted(undisturbed)
    assert [name for name in found if found[name] != undisturbed[name]] == []


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_killed_before_its_first_checkpoint_starts_again_with_and_without_resume(
    undisturbed: dict[str, bytes], faces_cache: Path, tmp_path: Path, resume: bool
):
    """A service always says --resume, and a person may not know that there was anything."""
    for place in BEFORE_THE_FIRST_CHECKPOINT:
        assert go(tmp_path / "run", faces_cache, resume=resume, place=place) == -9, place
    assert go(tmp_path / "run", faces_cache, resume=resume) == 0
    assert results(tmp_path / "run") == undisturbed


def test_a_run_killed_among_two_workers_ends_as_if_nothing_had_happened(
    undisturbed: dict[str, bytes], faces_cache: Path, tmp_path: Path
):
    """The workers outlive the process that was killed, and may still write while the run is resumed."""
    place = "federation, second round, two of three clients done"
    assert go(tmp_path / "run", faces_cache, workers=2, place=place) == -9
    assert go(tmp_path / "run", faces_cache, workers=2, resume=True) == 0
    assert results(tmp_path / "run") == undisturbed


def test_a_private_state_that_was_deleted_interrupts_until_it_is_back(
    experiment: Experiment, undisturbed: dict[str, bytes], faces_cache: Path, tmp_path: Path
):
    out = tmp_path / "run"
    assert go(out, faces_cache, place="federation, third round, model written, figures not") == -9
    rounds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    client = next(each for each in reversed(rounds) if each["event"] == "round")["participants"][0]
    state = max((out / "private" / client / "federate").glob("*.safetensors"), key=lambda path: path.name)
    if state.stem == "000003":  # of the round that was interrupted, which runs again
        state = state.with_name("000002.safetensors")
    content = state.read_bytes()
    state.unlink()
    with pytest.raises(Unkept, match=r"000002\.safetensors: this private state is gone; restore it from a copy"):
        run_experiment(experiment, out, resume=True, cache=faces_cache)
    state.write_bytes(content)
    assert go(out, faces_cache, resume=True) == 0
    assert results(out) == undisturbed


def test_a_run_killed_again_and_again_still_gets_there(
    undisturbed: dict[str, bytes], faces_cache: Path, tmp_path: Path
):
    resume = False
    for place in [
        "pre-training, between two steps",
        "federation, second round, two of three clients done",
        "federation, second round, in the evaluation",
        "federation, third round, model written, figures not",
    ]:
        assert go(tmp_path / "run", faces_cache, resume=resume, place=place) == -9
        resume = True
    assert go(tmp_path / "run", faces_cache, resume=True) == 0
    assert results(tmp_path / "run") == undisturbed


def test_a_second_process_in_the_same_run_is_refused(experiment: Experiment, tmp_path: Path):
    config = experiment.resolved()
    held = RunDirectory.create(tmp_path / "run", config, experiment.recipe, {})
    with pytest.raises(ConfigError, match="another process is working in this run"):
        RunDirectory.reopen(tmp_path / "run", config)
    with pytest.raises(ConfigError, match="another process is working in this run"):
        RunDirectory.create(tmp_path / "run", config, experiment.recipe, {})
    held.close()
    RunDirectory.reopen(tmp_path / "run", config).close()


@pytest.mark.parametrize("treasure", ["notes.txt", "report.html", "checkpoints/latest.safetensors"])
def test_a_new_run_removes_nothing_but_what_a_failed_start_left(experiment: Experiment, tmp_path: Path, treasure: str):
    config, path = experiment.resolved(), tmp_path / "run" / treasure
    RunDirectory.create(tmp_path / "run", config, experiment.recipe, {}).close()
    (tmp_path / "run" / "metrics.jsonl").write_text("of a round that never ended\n")
    RunDirectory.create(tmp_path / "run", config, experiment.recipe, {}).close()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b""
    path.parent.mkdir(exist_ok=True)
    path.write_text("of value")
    with pytest.raises(ConfigError, match="the folder is not empty"):
        RunDirectory.create(tmp_path / "run", config, experiment.recipe, {})
    assert path.read_text() == "of value"


def test_the_run_of_another_experiment_is_refused_and_what_differs_is_named(experiment: Experiment, tmp_path: Path):
    RunDirectory.create(tmp_path / "run", experiment.resolved(), experiment.recipe, {}).close()
    other = load_experiment(RECIPE, [*SETTINGS, "stages.federate.algorithm.training.lr=0.03"])
    with pytest.raises(ConfigError, match=r"stages\.federate\.algorithm\.training\.lr was 0\.02 and is 0\.03"):
        RunDirectory.reopen(tmp_path / "run", other.resolved())
