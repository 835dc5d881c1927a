"""Any number of Ctrl-C at any time: one line, exit code 5, a few seconds, and --resume goes on to the same bits."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from interrupting import EXPERIMENT, interrupt, require_orderly, start
from killing import results


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.slow
def test_interrupts_at_any_stage_of_a_run_end_it_and_it_goes_on_to_the_same_bits(
    experiment: Path, tmp_path: Path, faces_cache: Path
):
    out, whole = tmp_path / "run", tmp_path / "whole"
    command = ["run", str(experiment), "--workers", "2", "--resume", "--out"]
    began = time.monotonic()
    moments = {
        "imports": lambda: time.monotonic() > began + 0.5,
        "workers start": (out / "config.json").exists,
        "rounds": (out / "checkpoints" / "latest.safetensors").exists,
    }
    for name, moment in moments.items():
        ended = interrupt([*command, str(out)], faces_cache, moment)
        require_orderly(ended)
        assert ("before anything began" in ended.said) == (name == "imports")
        assert ("--resume" in ended.said) == (name != "imports")
    for folder in (out, whole):
        process = start([*command, str(folder)], faces_cache)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert results(out) == results(whole)


ENDING = """
import atexit, sys, threading, time
from personae import __main__, cli

class Modules:
    def __del__(self):
        print("taken apart")

kept = Modules()
kept.itself = kept

def late():
    time.sleep(0.2)
    print("thread")

def work():
    atexit.register(print, "registered")
    threading.Thread(target=late).start()
    {ending}

cli.main = work
__main__.main()
"""


@pytest.mark.parametrize(
    ("ending", "code", "said"), [("sys.exit(7)", 7, ""), ("sys.exit()", 0, ""), ("1 / 0", 1, "ZeroDivisionError")]
)
def test_a_process_that_is_done_ends_without_being_taken_apart(ending: str, code: int, said: str):
    command = [sys.executable, "-c", ENDING.format(ending=ending)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines() == ["thread", "registered"]
    assert said in done.stderr
    assert said or not done.stderr
