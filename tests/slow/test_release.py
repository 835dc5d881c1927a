"""The wheel and the source archive, each installed into an environment of its own outside the tree and tried there."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest

from pages import DOCS, ROOT, SMALL

pytestmark = pytest.mark.slow
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One built from the tree, one from the source archive."""
    tree, unpacked = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("unpacked")
    shutil.copytree(ROOT / "src" / "personae", tree / "src" / "personae", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    direct = built("wheel", tree)
    with tarfile.open(built("sdist", tree)) as archive:
        archive.extractall(unpacked, filter="data")
    return {"tree": direct, "sdist": built("wheel", unpacked / f"personae-{VERSION}")}


def built(kind: str, tree: Path) -> Path:
    """What setuptools makes of a tree."""
    build = f"from setuptools.build_meta import build_{kind}; build_{kind}('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (made,) = (tree / "dist").glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])
    return made


@pytest.mark.parametrize("origin", ["tree", "sdist"])
def test_an_installed_release_runs_outside_the_tree(origin: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    """Dependencies are those of this environment; personae itself is not."""
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings |= {"PERSONAE_CACHE": str(tmp_path / "cache"), "COLUMNS": "200"}

    def call(*arguments: str | Path) -> str:
        ended = subprocess.run(arguments, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    call(home / "bin/python", "-m", "pip", "install", "--no-deps", wheels[origin])
    where = call(home / "bin/python", "-c", "import personae; print(personae.__file__)")
    assert Path(where.strip()).is_relative_to(home)
    personae = home / "bin/personae"
    assert call(personae, "--version") == f"personae {VERSION}\n"
    changes = [word for setting in SMALL for word in ("--set", setting)]
    call(personae, "run", "quick", "--workers", "1", "--out", "run", *changes)
    assert "<html" in (tmp_path / "run/report.html").read_text()
    assert json.loads((tmp_path / "run/environment.json").read_text())["personae"] == VERSION
    call(personae, "export", "run", "--to", "model.safetensors", "--no-evaluate")


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--nitpicky"]
    built = subprocess.run([*command, DOCS, tmp_path / "site"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/index.html").read_text()
    assert f"personae {VERSION}" in page
    assert not list((tmp_path / "site").glob("notebook/index.html"))
