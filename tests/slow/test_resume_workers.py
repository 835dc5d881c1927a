"""Every place of a run at which it can be killed, with clients in two processes."""

from pathlib import Path

import pytest

from killing import PLACES, go, results

IN_THIS_PROCESS = [place for place in PLACES if "keeps" not in place and "private files" not in place]


@pytest.mark.slow
@pytest.mark.parametrize("place", IN_THIS_PROCESS)
def test_a_killed_run_of_two_workers_equals_an_undisturbed_one_of_one(
    undisturbed: dict[str, bytes], faces_cache: Path, tmp_path: Path, place: str
):
    assert go(tmp_path / "run", faces_cache, workers=2, place=place) == -9
    assert go(tmp_path / "run", faces_cache, workers=2, resume=True) == 0
    assert results(tmp_path / "run") == undisturbed
