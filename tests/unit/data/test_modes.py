"""Faces that were decoded or dealt are for their owner alone."""

import os
import stat
from pathlib import Path

import pytest

from facefiles import picture
from personae.data import open_faces
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal
from personae.experiment.materials import Materials


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_decoded_faces_are_for_their_owner(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        (tmp_path / "faces" / name).mkdir(parents=True)
        (tmp_path / "faces" / name / "1.png").write_bytes(picture(1))
    open_faces(tmp_path / "faces", height=16, width=16, cache=tmp_path / "cache", as_they_are=True)
    found = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size > 100]
    assert found
    for path in found:
        assert not mode(path) & 0o077 or not mode(path.parent) & 0o077 or not mode(tmp_path / "cache") & 0o077


def test_dealt_faces_are_for_their_owner(tmp_path: Path) -> None:
    experiment = parse_experiment(
        {
            "name": "tiny",
            "data": {"private": {"identities": 4, "images": 3}},
            "partition": {"by": "equal", "clients": 2},
            "stages": [{"name": "federate", "algorithm": {"name": "fedpe"}}],
        },
        "test",
    )
    for path in deal(Materials(experiment, Execution(cache=tmp_path / "cache")), tmp_path / "dealt"):
        assert mode(path) == 0o600
