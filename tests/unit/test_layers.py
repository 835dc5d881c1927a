"""The layers of docs/concepts/architecture.md: an import goes downwards."""

import ast
from pathlib import Path

import pytest

import personae

PACKAGE = Path(personae.__file__).parent
EVERYWHERE = {"errors", "files", "interrupts", "progress", "version", "words"}
BELOW = {
    "core": set(),
    "models": set(),
    "parts": {"core"},
    "evaluation": {"core"},
    "algorithms": {"core", "parts"},
    "layers": {"core", "parts"},
    "selection": {"core"},
    "aggregation": {"core"},
    "privacy": {"core"},
    "data": set(),
    "runtime": {"core", "parts"},
    "report": {"core", "data", "evaluation"},
    "tracking": {"core"},
    "experiment": {
        "aggregation",
        "algorithms",
        "core",
        "data",
        "evaluation",
        "layers",
        "models",
        "parts",
        "privacy",
        "report",
        "runtime",
        "selection",
        "tracking",
    },
    "deployment": {"core", "data", "experiment", "privacy", "runtime", "tracking"},
    "recognition": {"core", "data", "evaluation", "experiment", "models", "parts", "privacy", "report"},
    "recipes": set(),  # experiments, no code
    "screen": {
        "algorithms",
        "console",
        "core",
        "data",
        "doctor",
        "evaluation",
        "experiment",
        "layers",
        "parts",
        "privacy",
        "recognition",
        "report",
        "reproduce",
    },
    "commands": {
        "algorithms",
        "console",
        "core",
        "data",
        "deployment",
        "doctor",
        "evaluation",
        "experiment",
        "layers",
        "models",
        "privacy",
        "recognition",
        "report",
        "reproduce",
        "runtime",
        "screen",
        "tracking",
    },
    "reproduce": {"core", "data", "evaluation", "experiment", "parts", "privacy", "report", "runtime"},
}
BY_INTENT = {("data/clients.py", "runtime"), ("experiment/run.py", "console")}


def imported(path: Path) -> set[str]:
    """The parts of the package that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("personae."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("personae.")}
    return found


@pytest.mark.parametrize("layer", BELOW)
def test_an_import_goes_downwards(layer: str) -> None:
    for path in (PACKAGE / layer).rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        upwards = imported(path) - BELOW[layer] - EVERYWHERE - {layer}
        assert {(name, part) for part in upwards} <= BY_INTENT, name


def test_every_part_of_the_package_has_its_layer() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert parts == BELOW.keys()


def test_no_file_loads_pickles_or_evaluates_code() -> None:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert "pickle" not in imported_modules(tree), path
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"eval", "exec"}, path


def test_two_files_import_flower() -> None:
    modules = {path: imported_modules(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")}
    users = {path for path, names in modules.items() if any(name.split(".")[0] == "flwr" for name in names)}
    assert users == {PACKAGE / "runtime" / "flower.py", PACKAGE / "runtime" / "pulling.py"}


def imported_modules(tree: ast.Module) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
