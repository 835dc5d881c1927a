"""The layers of docs/concepts/architecture.md: an import goes downwards."""

import ast
from pathlib import Path

import pytest

import personae
from imports import PACKAGE, imported

EVERYWHERE = {"deferred", "errors", "files", "interrupts", "progress", "version", "words", "written"}
BELOW = {
    "attacks": {"core", "data", "evaluation", "experiment", "runtime"},
    "core": set(),
    "models": set(),
    "parts": {"core"},
    "evaluation": {"core"},
    "algorithms": {"core", "parts"},
    "layers": {"core", "parts"},
    "selection": {"core"},
    "aggregation": {"core"},
    "privacy": {"core", "parts"},
    "data": {"core"},
    "runtime": {"core", "parts"},
    "report": {"core", "data", "evaluation", "privacy"},
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
    "deployment": {"core", "data", "experiment", "privacy", "report", "runtime", "tracking"},
    "recognition": {"core", "data", "evaluation", "experiment", "models", "parts", "privacy", "report"},
    "recipes": set(),  # experiments, no code
    "screen": {
        "algorithms",
        "attacks",
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
        "attacks",
        "console",
        "core",
        "data",
        "deployment",
        "doctor",
        "evaluation",
        "experiment",
        "layers",
        "models",
        "parts",
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
BY_INTENT = {("experiment/run.py", "console")}  # progress, if Python code asks for it


def parts_of(names: set[str]) -> set[str]:
    """The parts of the package among imported modules."""
    return {name.split(".")[1] for name in names if name.startswith("personae.")}


@pytest.mark.parametrize("layer", BELOW)
def test_an_import_goes_downwards(layer: str) -> None:
    for path in (PACKAGE / layer).rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        upwards = parts_of(imported(path)) - BELOW[layer] - EVERYWHERE - {layer}
        assert {(name, part) for part in upwards} <= BY_INTENT, name


def test_every_part_of_the_package_has_its_layer() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert parts == BELOW.keys()


def test_no_file_loads_pickles_or_evaluates_code() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert "pickle" not in imported(path), path
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert not called & {"eval", "exec"}, path


def test_four_files_import_flower() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "flwr" in {name.split(".")[0] for name in imported(path)}}
    runtime = {PACKAGE / "runtime" / f"{name}.py" for name in ("enrolment", "flower", "node")}
    assert users == {*runtime, PACKAGE / "parts" / "secret_sums.py"}


def test_what_is_imported_everywhere_imports_nothing_of_the_rest() -> None:
    for name in EVERYWHERE:
        assert parts_of(imported(PACKAGE / f"{name}.py")) <= EVERYWHERE, name


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import personae.runtime.engine", "personae.runtime.engine"),
        ("import personae.runtime as r", "personae.runtime"),
        ("from personae.runtime import engine", "personae.runtime.engine"),
        ("from personae.runtime.engine import Engine", "personae.runtime.engine"),
        ("from personae import runtime", "personae.runtime"),
        ("from personae import Engine", "personae.api.Engine"),
        ("from . import partition", "personae.data.partition"),
        ("from .faces import FaceSet", "personae.data.faces"),
        ("from .. import runtime", "personae.runtime"),
        ("from ..runtime.engine import Engine", "personae.runtime.engine"),
        ("def f():\n    from personae.runtime import engine", "personae.runtime.engine"),
        ("if TYPE_CHECKING:\n    import personae.runtime.engine", "personae.runtime.engine"),
        ('importlib.import_module("personae.runtime.engine")', "personae.runtime.engine"),
        ('import_module("..runtime.engine", __package__)', "personae.runtime.engine"),
        ('__import__("personae.runtime.engine")', "personae.runtime.engine"),
    ],
)
def test_every_form_of_import_is_seen(tmp_path: Path, line: str, found: str) -> None:
    root = tmp_path / "personae"
    for module in ("api.py", "data/faces.py", "data/partition.py", "runtime/engine.py"):
        (root / module).parent.mkdir(parents=True, exist_ok=True)
        (root / module).touch()
    (root / "data" / "new.py").write_text(line + "\n")
    assert imported(root / "data" / "new.py", root) == {found}


THROUGH = {"commands": {"cli"}}  # what a folder's tests may call instead: it assembles the commands
NOT_MIRRORED = {
    "data/test_hostile.py": "a process of its own opens the files",
    "models/test_flops.py": "benchmarks/ counts the operations of networks",
}


def test_unit_tests_mirror_the_source() -> None:
    unit = Path(__file__).parent
    for path in sorted(unit.glob("*/**/test_*.py")):
        name = path.relative_to(unit).as_posix()
        folder = name.split("/")[0]
        assert folder in BELOW, name
        tested = parts_of({defined(module) for module in imported(path)})
        assert bool(tested & {folder, *THROUGH.get(folder, set())}) != (name in NOT_MIRRORED), name


def defined(module: str) -> str:
    """Where a public name comes from; of any other module, that itself."""
    public = getattr(personae, module.removeprefix("personae.api."), None) if "personae.api." in module else None
    return str(getattr(public, "__module__", module))
