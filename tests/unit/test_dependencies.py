"""Every package that the source imports is declared in pyproject.toml."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from imports import PACKAGE, imported

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = {"bench", "dev", "docs"}
OF_OTHER_NAMES = {"cv2": "opencv-python-headless", "faiss": "faiss-cpu"}  # in extras that may not be installed here
INSTALLED = packages_distributions()  # it reads the metadata of everything installed: once is enough
ON_REQUEST = {"onnx", "onnxruntime"}  # their names are handed to the function that imports them (parts/onnx.py)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[\s\[<>=!~;]", each, maxsplit=1)[0]) for each in requirements}


def distributions(modules: set[str]) -> set[str]:
    others = modules - sys.stdlib_module_names - {"personae"}
    return {canonical(OF_OTHER_NAMES.get(each) or INSTALLED.get(each, [each])[0]) for each in others}


def test_every_imported_package_is_declared() -> None:
    declared = names_of(PROJECT["dependencies"])
    for name, requirements in PROJECT["optional-dependencies"].items():
        declared |= set() if name in NOT_FOR_USERS else names_of(requirements)
    modules = {name.split(".")[0] for path in PACKAGE.rglob("*.py") for name in imported(path)}
    assert distributions(modules | ON_REQUEST) <= declared


def test_import_personae_takes_no_extra() -> None:
    """What a file imports at its top is there without extras, but for those files that belong to one."""
    required, of_extras = (
        names_of(PROJECT["dependencies"]),
        {"deployment", *(f"runtime/{name}.py" for name in ("enrolment", "flower", "node"))},
    )
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name in of_extras or name.split("/")[0] in of_extras:
            continue
        modules = {each.split(".")[0] for each in imported(path, at_once=True)}
        assert distributions(modules) <= required, name
