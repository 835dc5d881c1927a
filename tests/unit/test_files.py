"""Locks on files, between processes and gone with the one that had them; and disks that are full."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from personae.core.events import RoundTime
from personae.core.stage import Stage
from personae.errors import ConfigError, DataError, Interrupted
from personae.experiment import rundir, taken
from personae.experiment.rundir import RunDirectory
from personae.files import hold, read_json, replacing

HOLDER = """
import sys, time
from pathlib import Path
from personae.files import hold, read_json
held = hold(Path(sys.argv[1]), "taken")
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_between_processes_and_goes_with_the_one_that_is_killed(tmp_path: Path):
    place = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="somebody has it"):
            hold(place, "somebody has it")
        holder.kill()
        holder.wait()
    held = hold(place, "somebody has it")
    assert place.stat().st_mode & 0o777 == 0o600
    held.release()
    hold(place, "somebody has it").release()


def test_where_nothing_can_be_written_the_folder_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/file: cannot be written \(.+\); choose another place"):
        hold(tmp_path / "file" / "lock", "somebody has it")


def test_of_two_starts_into_one_folder_the_second_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The faster one completes a round between the other's look at the folder and its lock."""
    recipe: tuple[Stage, ...] = ()

    def faster(*arguments: Any) -> Any:
        monkeypatch.setattr(rundir, "hold", hold)
        RunDirectory.create(tmp_path / "run", {"seed": 1}, recipe, {}).close()
        (tmp_path / "run" / "checkpoints").mkdir()
        (tmp_path / "run" / "checkpoints" / taken.LATEST).write_bytes(b"a round")
        return hold(*arguments)

    monkeypatch.setattr(rundir, "hold", faster)
    with pytest.raises(ConfigError, match="not empty; resume that run"):
        RunDirectory.create(tmp_path / "run", {"seed": 2}, recipe, {})
    assert (tmp_path / "run" / "config.json").read_text() == '{\n "seed": 1\n}\n'
    assert (tmp_path / "run" / "checkpoints" / taken.LATEST).exists()
    RunDirectory.reopen(tmp_path / "run", {"seed": 1}).close()  # the loser has let go


def test_records_that_lost_lines_are_not_filled_with_zeros(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", {}, (), {})
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b"12345")
    with pytest.raises(DataError, match=r"metrics\.jsonl: lines are missing that were there at the last checkpoint"):
        run.rewind({"metrics": 6})
    run.rewind({"metrics": 4})
    run.close()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b"1234"


def test_records_that_were_changed_are_refused(tmp_path: Path):
    """A digit that flipped would be another figure in the report."""
    run = RunDirectory.create(tmp_path / "run", {}, (), {})
    run.write(RoundTime(stage="federate", round=1, seconds=1.5))
    position = run.position()
    run.write(RoundTime(stage="federate", round=2, seconds=2.5))
    run.close()
    path = tmp_path / "run" / "timing.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"1.5", b"1.4"))
    again = RunDirectory.reopen(tmp_path / "run", {})
    with pytest.raises(
        DataError, match=r"timing\.jsonl: it is not what was written until the last checkpoint; restore"
    ):
        again.rewind(position)
    path.write_bytes(whole.replace(b"2.5", b"2.4"))  # that is taken back
    again.rewind(position)
    assert again.position() == position
    again.close()
    assert path.read_bytes() == whole[: position["timing"]]


def test_a_run_that_goes_on_with_other_versions_says_so(tmp_path: Path):
    said: list[str] = []
    begun = {"personae": "1", "python": "3.11.7", "torch": "2.10.0", "numpy": "2.0", "workers": 1}
    RunDirectory.create(tmp_path / "run", {}, (), begun).close()
    run = RunDirectory.reopen(tmp_path / "run", {})
    run.compare_versions({**begun, "workers": 2}, said.append)
    assert said == []
    run.compare_versions({**begun, "torch": "2.11.0", "numpy": "2.1"}, said.append)
    run.close()
    (line,) = said
    assert "was begun with torch 2.10.0, numpy 2.0 and goes on with torch 2.11.0, numpy 2.1" in line


def test_a_folder_that_is_no_run_stays_as_it_is(tmp_path: Path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not empty"):
        RunDirectory.create(tmp_path, {}, (), {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"[" * 100_000, "nested too deep"),
        (b"9" * 5000, "4300"),
        (b"{}", "'stages' is missing"),
        (b"[]", "list indices"),
        (b"null", "not subscriptable"),
        (b'{"stages": []}', "list index out of range"),
    ],
)
def test_whatever_is_wrong_with_a_file_of_json_is_one_line_that_names_it(tmp_path: Path, content: bytes, why: str):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_json(tmp_path / "summary.json", lambda known: known["stages"][0])
    assert re.fullmatch(
        rf"{tmp_path}/summary.json: this file is damaged \(.*{why}.*\); restore it .*", str(caught.value)
    )


def test_a_file_of_json_that_is_a_pipe_is_refused_and_never_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(DataError, match=r"config\.json: this file is damaged \(it is not a plain file"):
        read_json(tmp_path / "config.json", dict)


def test_a_full_disk_is_told_whichever_library_finds_it(tmp_path: Path) -> None:
    error = SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})")
    with pytest.raises(Interrupted, match="model: the disk is full; free some space"), replacing(tmp_path / "model"):
        raise error
    with pytest.raises(SafetensorError), replacing(tmp_path / "model"):
        raise SafetensorError("Error while deserializing: InvalidHeader")
