"""What is kept for longer than it should be is listed, and deleted whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from personae.errors import ConfigError, DataError
from personae.experiment.config import parse_experiment
from personae.experiment.purging import due, purge
from personae.experiment.retention import SCHEDULE, Retention, duration, write_schedule
from personae.files import hold

DAY = 86400
LONG_AGO = 1_700_000_000.0


def run_in(folder: Path, **schedule: str) -> Path:
    for name in ("checkpoints/latest.safetensors", "private/ann/a/000001.safetensors", "models/a.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1234")
    for name in ("config.json", "metrics.jsonl", "ledger.jsonl", "timing.jsonl", "report.html"):
        (folder / name).write_text("{}\n")
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    write_schedule(folder, Retention(**schedule))
    return folder


def names(found: Any, folder: Path) -> list[str]:
    return [str(each.path.relative_to(folder)) for each in found]


def test_a_time_is_a_number_and_a_unit() -> None:
    assert duration("36h").total_seconds() == 1.5 * DAY
    assert (duration("8w").days, duration("2y").days) == (56, 730)
    for wrong in ("", "90", "d", "-1d", "1.5d", "90 d", "1m"):
        with pytest.raises(ConfigError, match="is not a duration"):
            duration(wrong)


def test_the_schedule_of_a_run_says_what_is_due(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", checkpoints="30d", private="90d", models="1y")
    assert names(due([run], now=LONG_AGO + 29 * DAY), run) == []
    assert names(due([run], now=LONG_AGO + 31 * DAY), run) == ["checkpoints"]
    found = due([run], now=LONG_AGO + 91 * DAY)
    assert names(found, run) == ["checkpoints", "private"]
    assert [each.bytes for each in found] == [4, 4]
    before = sorted(path.name for path in run.iterdir())
    purge(found)
    assert sorted(path.name for path in run.iterdir() if path.name != ".lock") == [
        name for name in before if name not in ("checkpoints", "private")
    ]
    assert names(due([run], now=LONG_AGO + 91 * DAY), run) == []


def test_updates_that_a_killed_server_has_left_go_with_the_checkpoints(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", checkpoints="30d")
    for place in ("scratch", "post"):
        (run / place).mkdir()
        (run / place / "an update").write_bytes(b"12345678")
    found = due([run], now=LONG_AGO + 31 * DAY)
    assert names(found, run) == ["checkpoints", "scratch", "post"]
    purge(found)
    assert not (run / "post").exists()


def test_a_time_that_is_given_counts_instead(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match="this run has no schedule"):
        due([run])
    later = LONG_AGO + 91 * DAY
    assert names(due([run], "90d", now=later), run) == ["checkpoints", "private"]
    assert names(due([run], "90d", ["models", "records"], now=later), run) == [
        *("metrics.jsonl", "ledger.jsonl", "timing.jsonl", "models")
    ]
    (whole,) = due([run], "90d", ["all"], now=later)
    purge([whole])
    assert not run.exists()
    with pytest.raises(ConfigError, match=r"--what modles: there is no such kind; did you mean models\?"):
        due([run], "90d", ["modles"])
    with pytest.raises(ConfigError, match="--what goes with --older-than"):
        due([run], None, ["models"])


def test_a_run_that_goes_on_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    held = hold(run / ".lock", "taken")
    try:
        with pytest.raises(ConfigError, match="another process is working here"):
            purge(due([run], "0d"))
    finally:
        held.release()
    assert (run / "checkpoints").exists()
    with pytest.raises(ConfigError, match="neither a run nor a client's home"):
        due([tmp_path], "0d")
    (run / SCHEDULE).write_text('{"checkpoints": "soon"}')
    with pytest.raises(DataError, match=rf"{SCHEDULE}: this file is damaged \(checkpoints: 'soon' is not a duration"):
        due([run])


def test_what_was_killed_half_way_is_finished_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in(tmp_path / "run")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            purge(due([run], "0d"))
    assert not (run / "checkpoints").exists()  # out of sight at once
    purge(due([run], "0d"))
    assert not list(run.glob(".purged.*"))


def test_a_home_keeps_a_run_as_a_whole(tmp_path: Path) -> None:
    for number in ("aa", "bb"):
        (tmp_path / "runs" / number / "ann").mkdir(parents=True)
        (tmp_path / "runs" / number / "run.json").write_text("{}")
    for path in (tmp_path / "runs" / "aa", *(tmp_path / "runs" / "aa").rglob("*")):
        os.utime(path, (LONG_AGO, LONG_AGO))
    found = due([tmp_path], "90d")
    assert names(found, tmp_path) == ["runs/aa"]
    purge(found)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["bb"]
    with pytest.raises(ConfigError, match="a client's home has no schedule"):
        due([tmp_path])


def test_an_experiment_has_a_schedule_that_changes_no_result() -> None:
    stage = {"name": "a", "algorithm": {"name": "fedpe"}}
    raw = {"name": "x", "stages": [stage], "data": {"private": {"source": "synthetic", "identities": 4}}}
    plain = parse_experiment(raw, "x")
    kept = parse_experiment({**raw, "retention": {"private": "90d"}}, "x")
    assert kept.retention.schedule() == {"private": "90d"}
    assert json.dumps(kept.resolved()) == json.dumps(plain.resolved())
    with pytest.raises(ConfigError, match=r"retention.private: 'soon' is not a duration"):
        parse_experiment({**raw, "retention": {"private": "soon"}}, "x")
