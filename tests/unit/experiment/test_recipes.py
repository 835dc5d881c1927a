"""The experiments that come with the package, as a user finds and runs them."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from personae import ConfigError, load_experiment
from personae.cli import app
from personae.data import synthetic_faces
from personae.experiment.config import load_variants
from personae.experiment.recipes import RECIPES, recipes, summary
from personae.experiment.sources import Source
from personae.reproduce.systems import SYSTEMS

ROOT = Path(__file__).parents[3]
Personae = Callable[..., Result]


@pytest.fixture
def personae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Personae:
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


def test_every_recipe_is_listed_with_a_line_of_its_own(personae: Personae) -> None:
    ended = personae("recipes")
    assert ended.exit_code == 0
    told = json.loads(personae("recipes", "--json").stdout)
    for path in RECIPES.rglob("*.toml"):
        name, text = path.relative_to(RECIPES).with_suffix("").as_posix(), summary(path)
        assert 20 < len(text) <= 100, name
        assert text.endswith("."), name
        assert told[name] == text
        assert any(line.split()[:1] == [name] for line in ended.stdout.splitlines()), name
    assert list(recipes())[:4] == ["demo", "demo-all", "demo-quick", "quick"]


@pytest.mark.parametrize("name", [name for name in recipes() if name.startswith("faces/")])
def test_recipes_for_photographs_hold_people_out(name: str, tmp_path: Path) -> None:
    """On a set with as many images of each person as their comments say: CelebA first, then LFW."""
    images = [*[5] * 150, *[2, 4] * 11, *[9] * 126, *[1, 2, 3, 4, 5, 9] * 20]
    one = synthetic_faces(identities=1, images=1, size=8, cache=tmp_path)
    identity = np.repeat(np.arange(len(images)), images)
    names = tuple(map(str, range(len(images))))
    faces = replace(one, identities=names, identity=identity, columns={}, stored=np.zeros_like(identity))

    def people(source: Source) -> set[int]:
        chosen = faces.slice_identities(source.first, source.identities, source.min_images, source.max_images)
        return set(chosen.identity.tolist())

    data = load_experiment(name).data
    assert data.heldout is not None
    assert people(data.heldout) == {at for at in range(298, len(images)) if 2 <= images[at] <= 4}
    for source in filter(None, (data.public, data.private)):
        for part in source.all_parts().values():
            assert not people(part) & people(data.heldout)


@pytest.mark.parametrize("name", recipes())
def test_a_written_recipe_is_the_same_experiment_with_its_comments(name: str, personae: Personae) -> None:
    ended = personae("init", name)
    path = Path(f"{name.replace('/', '-')}.toml")
    assert f"personae {'serve' if name.startswith('deploy/') else 'run'} {path}" in ended.stdout
    assert path.read_text() == recipes()[name].read_text()
    assert load_experiment(path).resolved() == load_experiment(name).resolved()


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_row_with_the_data_of_a_paper_is_an_experiment(system: str) -> None:
    for name, variant in load_variants(recipes()[f"{system}/paper"]).items():
        assert variant.recipe, name
        assert variant.data.private is not None
        assert all(part.source != "synthetic" for part in variant.data.private.all_parts().values()), name


def test_without_a_name_the_quick_one_is_written_and_nothing_is_overwritten(personae: Personae, tmp_path: Path) -> None:
    assert personae("init", "--to", "sub/mine.toml").exit_code == 0
    (tmp_path / "sub" / "mine.toml").write_text("mine")
    again = personae("init", "--to", "sub/mine.toml")
    assert isinstance(again.exception, ConfigError)
    assert "sub/mine.toml: this exists already" in str(again.exception)
    assert (tmp_path / "sub" / "mine.toml").read_text() == "mine"


def test_a_file_wins_over_a_recipe_and_a_folder_does_not(personae: Personae, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert load_experiment("demo").name == "demo"
    (tmp_path / "quick").write_text(recipes()["quick"].read_text().replace('name = "quick"', 'name = "mine"'))
    assert load_experiment("quick").name == "mine"


def test_an_experiment_may_extend_a_recipe(personae: Personae, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "quick"\nname = "mine"\nstages.federate.rounds = 9\n')
    mine, quick = load_experiment("mine.toml"), load_experiment("quick")
    assert (mine.name, mine.data) == ("mine", quick.data)
    assert [stage.rounds for stage in mine.recipe if stage.name == "federate"] == [9]


def test_the_files_that_a_recipe_asks_for_are_looked_for_here(personae: Personae, tmp_path: Path) -> None:
    private = load_experiment("fedgc/paper").data.private
    assert private.source == str(tmp_path / "webface")
    assert load_experiment("quick", ["data.private.source=faces"]).data.private.source == str(tmp_path / "faces")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("quik", "did you mean the recipe quick?"),
        ("fedgc/smal", "recipe fedgc/small?"),
        ("xyz.toml", "personae recipes"),
    ],
)
@pytest.mark.parametrize("command", ["run", "deal", "init"])
def test_a_name_that_does_not_exist_is_one_line(command: str, name: str, advice: str, personae: Personae) -> None:
    ended = personae(command, name)
    assert isinstance(ended.exception, ConfigError)
    assert str(ended.exception).startswith(f"{name}: there is no such file")
    assert advice in str(ended.exception)


@pytest.mark.slow
def test_recipes_are_in_the_wheel_and_run_outside_the_source_tree(tmp_path: Path) -> None:
    tree, site, elsewhere = (tmp_path / name for name in ("tree", "site", "elsewhere"))
    elsewhere.mkdir()
    shutil.copytree(ROOT / "src" / "personae", tree / "src" / "personae", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (wheel,) = tree.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    call = f"import personae; assert personae.__file__.startswith({str(site)!r}); from personae.cli import main; main()"
    settings = {**os.environ, "PYTHONPATH": str(site), "PERSONAE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-c", call, "run", "quick", "--dry-run"],
        cwd=elsewhere, env=settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "federate" in ended.stdout
