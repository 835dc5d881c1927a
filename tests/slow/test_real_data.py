"""Photographs of real people, where they are at hand, through `personae data`."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from personae.cli import app
from personae.data import open_faces, read_pairs
from personae.data.align import TEMPLATE
from personae.data.detection import find_faces, main_face

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CELEBA, LFW = DATA / "celeba299_112.zip", DATA / "lfw_112.zip"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CELEBA.exists() or not LFW.exists(), reason=f"{DATA.name} with real faces is not at hand"),
]


def told(*arguments: str) -> dict:
    result = CliRunner().invoke(app, ["data", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_celeba_inspected() -> None:
    found = told("inspect", str(CELEBA))
    assert (found["images"], found["identities"], found["unreadable"]) == (6236, 299, [])
    assert found["sizes"] == {"112 x 112": 6236}
    assert (len(found["shared"]), found["repeated"], len(found["alike"])) == (10, 2, 3)


def test_lfw_inspected() -> None:
    found = told("inspect", str(LFW))
    assert (found["images"], found["identities"], found["unreadable"]) == (13233, 5749, [])
    assert found["histogram"][0] == [1, 1, 4069]
    # The thumbnails correlate with 0.9988, under the names of two men.
    assert [pair[:2] for pair in found["alike"]] == [
        ["Carlos_Beltran/Carlos_Beltran_0001.jpg", "Raul_Ibanez/Raul_Ibanez_0001.jpg"]
    ]


def test_lfw_packed(tmp_path: Path) -> None:
    told("pack", str(LFW), str(tmp_path / "lfw.faces"))
    packed = open_faces(tmp_path / "lfw.faces", height=112, width=112)
    faces = open_faces(LFW, height=112, width=112, cache=tmp_path / "cache")
    assert packed.fingerprint == faces.fingerprint
    rows = np.arange(0, len(faces), 37)
    np.testing.assert_array_equal(packed.images(rows), faces.images(rows))
    pairs = read_pairs(tmp_path / "lfw.faces", packed)
    assert pairs is not None
    assert (len(pairs.left), pairs.folds) == (6000, 10)


def test_faces_that_are_aligned_have_their_landmarks_near_the_template(tmp_path: Path) -> None:
    faces = open_faces(LFW, height=112, width=112, cache=tmp_path)
    rows = np.random.default_rng(0).choice(len(faces), 320, replace=False)
    found = [
        main_face(each, 112, 112)
        for batch in np.array_split(rows, 10)
        for each in find_faces(list(faces.images(batch)), margin=0.5)
    ]
    landmarks = np.array([face.landmarks for face in found if face is not None])
    assert len(landmarks) >= 0.99 * len(rows)
    assert np.linalg.norm(landmarks - TEMPLATE, axis=2).mean() < 3.5
