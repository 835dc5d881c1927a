"""Several variants of one experiment at once: each as it would be alone, and a table of them at the end."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killing import TINY, results
from personae import cli
from personae.core.acceleration import Acceleration
from personae.core.events import Event
from personae.errors import ConfigError, QuorumLost, Unkept
from personae.experiment import run
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.reproduce import runner
from personae.reproduce.several import COMMON, PAGE, planned, run_several

FILE = """
extends = "quick"
name = "x"

[variants]
plain.until = "federate"
slow = { until = "federate", stages.federate.algorithm.training.lr = 0.01 }
wild = { until = "federate", stages.federate.algorithm.training.lr = 1e30 }
"""
LONGER = """
extends = "quick"
name = "x"

[variants]
base.until = "federate"
other = { until = "federate", stages.federate.algorithm.training.lr = 0.01 }
plain = { until = "federate", evaluation.mirror = false }
kept = { until = "federate", audit.rounds = [1] }
tuned = { until = "tune" }
slowly = { until = "tune", stages.tune.algorithm.training.lr = 0.01 }

[[stages]]
name = "pretrain"
algorithm.name = "pretrain"

[[stages]]
name = "federate"
algorithm.name = "fedpe"

[[stages]]
name = "tune"
algorithm.name = "fedpe"
"""
ROUNDS = ["stages.pretrain.rounds=1", "stages.federate.rounds=1", "stages.federate.evaluate_every=1"]
SETTINGS = [*TINY, *ROUNDS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    return path


def variants(file: Path, *names: str) -> dict[str, Experiment]:
    return {name: load_experiment(file, SETTINGS, name) for name in names}


def test_each_has_the_bits_of_a_run_alone_and_finished_ones_are_not_repeated(
    file: Path, faces_cache: Path, tmp_path: Path
):
    out, execution, asked = tmp_path / "out", Execution(workers=2, cache=faces_cache), variants(file, "plain", "slow")
    found, failed = run_several(asked, out, execution)
    assert not failed
    assert [model.stage.name for model in found.verdict.models] == ["plain", "slow"]
    assert (out / PAGE).is_file()
    assert (out / "slow" / "report.html").is_file()
    conduct(asked["slow"], tmp_path / "alone", Execution(cache=faces_cache))
    assert results(out / "slow") == results(tmp_path / "alone")
    stages = [json.loads(line)["stage"] for line in (out / "slow" / "timing.jsonl").read_text().splitlines()]
    assert stages == ["pretrain", "federate"]
    assert {path.name for path in out.iterdir()} == {"plain", "slow", PAGE}

    with pytest.raises(ConfigError, match=r"out/plain: the folder is not empty; resume that run"):
        run_several(asked, out, execution)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    more, failed = run_several(variants(file, "plain", "slow", "wild"), out, Execution(cache=faces_cache), resume=True)
    assert list(failed) == ["wild"]
    assert [row.cells for row in more.verdict.rows] == [row.cells for row in found.verdict.rows]
    assert before.items() <= {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}.items()


def test_a_lost_quorum_is_told_from_divergence(
    file: Path, faces_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lost(*_: Any, **__: Any) -> None:
        raise QuorumLost("1 of 4 clients returned an acceptable update")

    monkeypatch.setattr(runner, "conduct", lost)
    with pytest.raises(QuorumLost, match="plain, slow: not finished; nothing is left to compare"):
        run_several(variants(file, "plain", "slow"), tmp_path, Execution(cache=faces_cache))
    assert runner.ERRORS["Unkept"] is Unkept  # errors of all kinds come back from another process


@pytest.fixture
def longer(tmp_path: Path) -> Callable[..., dict[str, Experiment]]:
    path = tmp_path / "longer.toml"
    path.write_text(LONGER)
    return lambda *names: variants(path, *names)


def begins(asked: dict[str, Experiment], out: Path) -> dict[Any, Any]:
    """What each begins with, without the digest, and how many stages that has."""
    found = {}
    for job in planned(asked, out):
        name, begin = (each and each.partition("-")[0] for each in (job.folder, job.begin))
        found[name] = begin and (begin, job.stages)
    return found


def test_what_several_begin_with_is_one_run(longer: Callable[..., dict[str, Experiment]], tmp_path: Path):
    start, trained = f"{COMMON}/pretrain", f"{COMMON}/federate"
    assert begins(longer("base", "other"), tmp_path) == {start: None, "base": (start, 1), "other": (start, 1)}
    alone = {"base": None, "plain": None, "kept": None}  # pre-training is evaluated or kept in another way
    assert begins(longer(*alone), tmp_path) == alone
    assert begins(longer("tuned", "slowly", "other"), tmp_path) == {
        start: None,
        trained: (start, 1),
        "other": (start, 1),
        "tuned": (trained, 2),
        "slowly": (trained, 2),
    }
    alone = {trained: None, "tuned": (trained, 2), "slowly": (trained, 2)}  # nobody needs the pre-training by itself
    assert begins(longer("tuned", "slowly"), tmp_path) == alone
    asked = longer("tuned", "base")
    asked["pretrained"] = asked["base"].model_copy(update={"stages": asked["base"].stages[:1]})
    known = {"pretrained": None, "base": ("pretrained", 1), "tuned": ("base", 2)}  # another variant ends there
    assert begins(asked, tmp_path) == known
    assert [job.folder for job in planned(asked, tmp_path)] == list(known)


def test_what_was_begun_alone_goes_on_alone(
    file: Path, faces_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As an earlier version has left it: the whole of one run, and another one on its way."""
    out, execution, asked = tmp_path / "out", Execution(cache=faces_cache), variants(file, "plain", "slow")
    for name, experiment in asked.items():
        conduct(experiment, out / name, execution)
    before = {name: results(out / name) for name in asked}
    latest = out / "slow" / "checkpoints" / "latest.safetensors"
    latest.with_name("before.safetensors").replace(latest)
    (latest.parent / "finished" / "federate.safetensors").unlink()
    assert {job.folder: job.begin for job in planned(asked, out)} == {"plain": None, "slow": None}
    done = []

    def conducted(experiment: Experiment, folder: Path, *arguments: Any, **options: Any) -> None:
        done.append(folder.name)
        conduct(experiment, folder, *arguments, **options)

    monkeypatch.setattr(runner, "conduct", conducted)
    assert not run_several(asked, out, execution, resume=True)[1]
    assert done == ["slow"]
    assert {name: results(out / name) for name in asked} == before


def test_an_interrupted_one_takes_over_all_of_what_it_begins_with(
    longer: Callable[..., dict[str, Experiment]], faces_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed while the second variant takes over the pre-training; then the same command again with --resume."""
    out, execution, asked = tmp_path / "out", Execution(cache=faces_cache), longer("tuned", "slowly")
    kept = longer("kept")["kept"].audit
    asked = {name: each.model_copy(update={"audit": kept}) for name, each in asked.items()}
    original = Path.replace

    def replaced(self: Path, target: str | Path) -> Path:
        if Path(target).parts[-3:] == ("slowly", "checkpoints", "latest.safetensors"):
            raise KeyboardInterrupt
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        run_several(asked, out, execution)
    monkeypatch.undo()
    assert list((out / COMMON).iterdir())
    assert not run_several(asked, out, execution, resume=True)[1]
    assert not (out / COMMON).exists()
    conduct(asked["slowly"], tmp_path / "alone", execution)
    assert results(out / "slowly") == results(tmp_path / "alone")
    assert recorded(out / "slowly") == recorded(tmp_path / "alone") != {}


def recorded(run: Path) -> dict[str, bytes]:
    """What the server received, as it was kept."""
    return {str(path.relative_to(run)): path.read_bytes() for path in (run / "audit").rglob("*.safetensors")}


def test_trackers_hear_of_every_stage_of_a_variant_and_of_nothing_else(
    file: Path, faces_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heard: dict[str, set[str]] = {}

    @contextmanager
    def tracking(kinds: Sequence[type], folder: Path, *_: object) -> Iterator[Callable[[Event], None]]:
        yield lambda event: heard.setdefault(folder.name, set()).add(event.stage) if kinds else None

    monkeypatch.setattr(run, "tracking", tracking)
    execution = Execution(cache=faces_cache, trackers=("tensorboard",))
    run_several(variants(file, "plain", "slow"), tmp_path, execution)
    assert heard == {"plain": {"pretrain", "federate"}, "slow": {"pretrain", "federate"}}


def test_a_beginning_with_other_bits_is_refused(file: Path, faces_cache: Path, tmp_path: Path):
    """Faces or switches may change between two attempts; the configuration of a run does not say so."""
    asked, execution = variants(file, "plain", "slow"), Execution(cache=faces_cache)
    common = planned(asked, tmp_path)[0]
    conduct(common.experiment, tmp_path / common.folder, replace(execution, acceleration=Acceleration(prelu=False)))
    with pytest.raises(ConfigError, match="of another experiment; resume with its configuration, data and --without"):
        run_several(asked, tmp_path, execution)


def test_a_beginning_of_another_experiment_is_refused(file: Path, faces_cache: Path, tmp_path: Path):
    asked, execution = variants(file, "plain", "slow"), Execution(cache=faces_cache)
    common = planned(asked, tmp_path)[0]
    conduct(common.experiment, tmp_path / "begin", execution)
    other = asked["slow"].model_copy(update={"seed": 5})
    with pytest.raises(ConfigError, match="begin: this run is not the beginning of x"):
        conduct(other, tmp_path / "out", execution, begin=tmp_path / "begin", records=True)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--variant", "plain,slwo"], "there is no variant 'slwo'; did you mean slow?"),
        (["--variant", "plain,plain"], "name each of them once"),
        (["--variant", "plain", "--jobs", "2"], "--jobs goes with several variants"),
        (["--variant", "plain,slow", "--workers", "2"], "--workers goes with one run"),
        (["--variant", "plain,slow", "--dry-run"], "--dry-run goes with one run"),
    ],
)
def test_a_wrong_command_ends_with_one_line(
    file: Path, options: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["personae", "run", str(file), *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert line in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.slow
def test_the_command_shows_them_side_by_side_and_tells_of_one_that_diverged(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["run", str(file), "--variant", "plain,slow,wild", "--jobs", "2", "--out", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr(sys, "argv", ["personae", *words, *sets])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert ended.value.code == 4
    assert [row["run"] for row in json.loads(told.out)["runs"]] == ["plain", "slow"]
    assert "wild: not finished; left out of the comparison" in told.err
