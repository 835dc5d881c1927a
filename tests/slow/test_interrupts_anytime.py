"""Ctrl-C at very many moments of a run, from the first import to the report."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from interrupting import EXPERIMENT, interrupt, require_orderly, start
from killing import results

pytestmark = pytest.mark.slow


def after(seconds: float) -> Callable[[], bool]:
    due = time.monotonic() + seconds
    return lambda: time.monotonic() > due


def finished(command: list[str], cache: Path) -> int:
    """How a command ends that nobody interrupts."""
    with start(command, cache) as process:
        process.communicate(timeout=120)
        return process.returncode


@pytest.mark.parametrize("workers", ["1", "2"])
def test_interrupts_at_very_many_moments(tmp_path: Path, faces_cache: Path, workers: str):
    experiment, out, whole = tmp_path / "tiny.toml", tmp_path / "run", tmp_path / "whole"
    experiment.write_text(EXPERIMENT)
    command = ["run", str(experiment), "--workers", workers, "--resume", "--out"]
    began = time.monotonic()
    assert finished([*command, str(whole)], faces_cache) == 0
    lasted, codes = time.monotonic() - began, set[int]()
    for number in range(25):
        ended = interrupt([*command, str(out)], faces_cache, after(number * lasted / 24))
        codes.add(ended.code)
        if ended.code:
            require_orderly(ended)
        assert "Traceback" not in ended.said
    assert codes >= {5}
    assert codes <= {0, 5}  # it may be done before
    assert finished([*command, str(out)], faces_cache) == 0
    assert results(out) == results(whole)
