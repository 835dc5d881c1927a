"""The tutorials' commands, typed as they stand, from start to end."""

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from pages import DOCS, ROOT, blocks, commands
from personae.data.synthetic import render

pytestmark = pytest.mark.slow


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A reader's folder, with people in `faces`, `people` and `photographs`."""
    write_people(tmp_path / "faces", people=30, images=6, size=32)
    write_people(tmp_path / "people", people=4, images=3, size=32)
    (tmp_path / "people" / "person-000").rename(tmp_path / "people" / "Ada")
    picture = next((tmp_path / "people" / "Ada").iterdir())
    (tmp_path / "visitor.png").write_bytes(picture.read_bytes())
    return tmp_path


def write_people(folder: Path, people: int, images: int, size: int) -> None:
    who, which = torch.arange(people).repeat_interleave(images), torch.arange(images).repeat(people)
    for person, number, face in zip(who.tolist(), which.tolist(), render(who, which, seed=7, size=size), strict=True):
        path = folder / f"person-{person:03}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(face.numpy()).save(path)


def typed(desk: Path, line: str, accepted: tuple[int, ...] = (0,)) -> str:
    words = shlex.split(line)[1:]
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
    call = [sys.executable, "-P", "-c", "from personae.cli import main; main()", *words]
    ended = subprocess.run(call, cwd=desk, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode in accepted, f"{line}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_tour_and_the_login(desk: Path) -> None:
    """Without the demo, which has a test of its own."""
    for line in commands(page("start/tour.md")):
        if line != "personae demo":
            typed(desk, line)
    assert (desk / "comparison.html").exists()
    for line in commands(page("tutorials/from-model-to-login.md")):
        asks = line.split()[1] in ("identify", "verify")
        typed(desk, line, accepted=(0, 7) if asks else (0,))
    assert "Ada" not in typed(desk, "personae gallery list people.db")


def test_my_own_faces(desk: Path) -> None:
    for line in commands(page("tutorials/my-faces.md")):
        if "data align" not in line:  # it needs photographs, which other tests have
            typed(desk, line)
    assert (desk / "runs/mine/report.html").exists()


def test_an_algorithm_of_ones_own(desk: Path) -> None:
    text = page("tutorials/write-an-algorithm.md")
    (code,), (experiment,) = blocks(text, "python"), blocks(text, "toml")
    (desk / "fairer.py").write_text(code)
    (desk / "fairer.toml").write_text(experiment)
    for line in commands(text):
        typed(desk, line)
    assert (desk / "fairer.html").exists()


def test_a_paper(desk: Path) -> None:
    for line in commands(page("tutorials/reproduce-a-paper.md")):
        typed(desk, line.replace("--seeds 3", "--seeds 2"), accepted=(0, 5) if "--budget" in line else (0,))
    assert "GC-4" in (desk / "runs/gc4/claims.md").read_text()


def test_what_three_offices_prepare(desk: Path) -> None:
    """Serving and joining are in tests/parity, over a real SuperLink."""
    text = page("tutorials/three-offices.md")
    (experiment,) = blocks(text, "toml")
    (desk / "offices.toml").write_text(experiment)
    for line in commands(text):
        command, *words = shlex.split(line)[1:]
        if command in ("certs", "deal"):
            typed(desk, line)
        for option, path in itertools.pairwise(words):
            assert option not in ("--data", "--certs") or (desk / path).exists()
