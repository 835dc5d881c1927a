"""Which keys an algorithm has, read from the text of its class.

A misspelt key is told here, before other mistakes, without importing the algorithms and with them PyTorch, which takes
seconds. What cannot be read in this way is left to the whole check (`experiment/config.py`), which comes afterwards.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from personae.errors import ConfigError
from personae.experiment.explain import misspelt

ROOT = Path(__file__).parents[2]


class Class(NamedTuple):
    """A class as it is written, and the module in which its names mean something."""

    module: str
    text: ast.ClassDef


def refuse_unknown_keys(raw: Mapping[str, Any], origin: str) -> None:
    """Refuse keys that an algorithm of this package does not have, in its table and in the sections of that."""
    stages = raw.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        match stage:
            case {"name": str(title), "algorithm": {"name": str(name), **settings}} if name in algorithms():
                found = list(_unknown(settings, algorithms()[name], f"stages.{title}.algorithm"))
                if found:
                    raise ConfigError(f"{origin}: {misspelt(*found[0], more=len(found) - 1)}")


@cache
def algorithms() -> dict[str, Class]:
    """Those of this package, by name."""
    modules = [f"personae.algorithms.{path.stem}" for path in (ROOT / "personae" / "algorithms").glob("*.py")]
    classes = [Class(module, part) for module in modules for part in _body(module) if isinstance(part, ast.ClassDef)]
    return {name: each for each in classes if (name := _name(each))}


def fields_of(kind: Class) -> dict[str, Class | None]:
    """The fields of a dataclass, those that it inherits first; with the class of each that is a section."""
    found: dict[str, Class | None] = {}
    for base in reversed(kind.text.bases):
        plain = base.value if isinstance(base, ast.Subscript) else base  # without the types that it is used with
        inherited = _class(plain, kind.module)
        found |= fields_of(inherited) if inherited else {}
    for part in kind.text.body:
        match part:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=hint) if "ClassVar" not in ast.unparse(hint):
                found[name] = _class(hint, kind.module)
    return found


def _unknown(settings: Mapping[Any, Any], kind: Class, place: str) -> Iterator[tuple[str, str, list[str]]]:
    """The place of each key that there is not, the key, and those that there are; first the ones in sections."""
    fields = fields_of(kind)
    for name, section in fields.items():
        inside = settings.get(name)
        if section and isinstance(inside, Mapping):
            yield from _unknown(inside, section, f"{place}.{name}")
    yield from ((f"{place}.{key}", key, list(fields)) for key in settings if key not in fields)


def _class(expression: ast.expr, module: str) -> Class | None:
    """What a name in a module stands for, if it is a class of this package."""
    if not isinstance(expression, ast.Name):
        return None
    for part in _body(module):
        match part:
            case ast.ClassDef(name=expression.id):
                return Class(module, part)
            case ast.ImportFrom(module=str(source), names=names) if expression.id in [each.name for each in names]:
                return _class(expression, source)
    return None


def _name(kind: Class) -> str | None:
    """Under which an algorithm is chosen."""
    for part in kind.text.body:
        match part:
            case ast.AnnAssign(target=ast.Name(id="name"), value=ast.Constant(value=str(name))):
                return name
    return None


@cache
def _body(module: str) -> list[ast.stmt]:
    """The statements of a module of this package; of no other."""
    place = ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
