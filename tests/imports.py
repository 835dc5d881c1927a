"""What source files import, in whatever form they do it."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import personae

PACKAGE = Path(personae.__file__).parent


def imported(path: Path, root: Path = PACKAGE, *, at_once: bool = False) -> set[str]:
    """The full names of all modules that a file imports, anywhere in it or `at_once`, by statement or by function."""
    package = ".".join(path.relative_to(root.parent).parts[:-1]) if path.is_relative_to(root) else ""
    tree = ast.parse(path.read_text())
    return {name for node in (tree.body if at_once else ast.walk(tree)) for name in _names(node, package, root)}


def _names(node: ast.AST, package: str, root: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        yield from (_meant(module, alias.name, root) for alias in node.names)
    elif isinstance(node, ast.Call) and _is_import(node.func):
        for given in node.args[:1]:
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield importlib.util.resolve_name(given.value, package)


def _is_import(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _meant(module: str, name: str, root: Path) -> str:
    """Of `from module import name`: a module of that name, or else the module; `personae` has names from `api`."""
    if module.split(".")[0] != root.name:
        return module
    place = root.parent.joinpath(*module.split("."), name)
    if place.is_dir() or place.with_suffix(".py").is_file():
        return f"{module}.{name}"
    return f"{root.name}.api.{name}" if module == root.name else module
