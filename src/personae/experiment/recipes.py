"""The experiments that come with the package, by name: `quick`, `fedgc/small`."""

import difflib
from pathlib import Path

from personae.errors import ConfigError
from personae.files import write_text

RECIPES = Path(__file__).parents[1] / "recipes"


def recipes() -> dict[str, Path]:
    """Every recipe by its name, those for a first look before those of one method."""
    named = {path.relative_to(RECIPES).with_suffix("").as_posix(): path for path in RECIPES.rglob("*.toml")}
    return dict(sorted(named.items(), key=lambda item: (item[0].count("/"), item[0])))


def summary(recipe: Path) -> str:
    """What a recipe says of itself in its first line."""
    with recipe.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("#").strip()


def locate(experiment: str | Path, folder: Path = Path()) -> Path:
    """The file that is meant by a path, from this folder on, or by the name of a recipe. A path wins over a name."""
    path, known = folder / experiment, recipes()
    if path.is_file() or str(experiment) not in known:
        return path
    return known[str(experiment)]


def folder_of(experiment: Path) -> Path:
    """Where its file names start from: its own folder; of a recipe, which is nobody's, the current one."""
    return Path.cwd() if experiment.is_relative_to(RECIPES) else experiment.parent


def absent(experiment: Path) -> ConfigError:
    """There is neither such a file nor such a recipe."""
    close = difflib.get_close_matches(experiment.with_suffix("").as_posix(), recipes(), n=1, cutoff=0.5)
    advice = f"did you mean the recipe {close[0]}?" if close else "`personae recipes` lists what comes with the package"
    return ConfigError(f"{experiment}: there is no such file; {advice}")


def write_recipe(name: str, to: Path) -> None:
    """Copy a recipe, comments and all, to a file that is not there yet."""
    if name not in recipes():
        raise absent(Path(name))
    write_new(to, recipes()[name].read_text(encoding="utf-8"))


def write_new(to: Path, text: str) -> None:
    """An experiment file, which overwrites none."""
    if to.exists():
        raise ConfigError(f"{to}: this exists already; choose another place with --to")
    write_text(to, text)
