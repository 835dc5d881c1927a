"""Classes of this package as they are written: their names, fields and registers, read from the text of modules.

To import most of them is to import PyTorch, which takes seconds. What only has to be listed, or compared with what an
experiment says, needs none of it.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).parents[1]


class Expression(NamedTuple):
    """Something as it is written, and the module in which its names mean something."""

    module: str
    text: ast.expr


class Class(NamedTuple):
    """A class as it is written, and the module in which its names mean something."""

    module: str
    text: ast.ClassDef

    @property
    def name(self) -> str:
        """Under which it is chosen, as the class says itself; empty where it does not."""
        return self.words("name")

    def words(self, variable: str) -> str:
        """The text that one of its own variables has; empty where there is none."""
        for part in self.text.body:
            match part:
                case ast.AnnAssign(target=ast.Name(id=str(found)), value=ast.Constant(value=str(text))):
                    if found == variable:
                        return text
        return ""

    @property
    def is_dataclass(self) -> bool:
        return any("dataclass" in ast.unparse(each) for each in self.text.decorator_list)

    @property
    def is_model(self) -> bool:
        """Whether pydantic makes fields of its annotations."""
        named = [base.id for base in self.text.bases if isinstance(base, ast.Name)]
        return "BaseModel" in named or any(base.is_model for base in self.bases)

    @property
    def bases(self) -> list["Class"]:
        """Those that are classes of this package, without the types that they are used with."""
        plain = [base.value if isinstance(base, ast.Subscript) else base for base in self.text.bases]
        found = [meaning(Expression(self.module, base)) for base in plain]
        return [each for each in found if isinstance(each, Class)]

    @property
    def fields(self) -> dict[str, tuple[Expression, Expression | None]]:
        """The annotation and the default of each field, those that it inherits first."""
        found: dict[str, tuple[Expression, Expression | None]] = {}
        for base in reversed(self.bases):
            found |= base.fields
        for part in self.text.body if self.is_dataclass or self.is_model else ():
            match part:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=value):
                    if "ClassVar" not in ast.unparse(hint):
                        found[name] = Expression(self.module, hint), Expression(self.module, value) if value else None
        return found


class Register(NamedTuple):
    """The classes of this package that can be chosen by name, and the entry-point group in which there may be more."""

    group: str
    own: dict[str, Class]


def register(package: str, variable: str) -> Register:
    """A `Registry` that a package makes; of a dictionary of classes by name, no group."""
    match found := meaning(Expression(package, ast.Name(variable))):
        case Expression(text=ast.Call(args=[ast.Constant(value=str(group)), _, ast.Tuple(elts=listed)])):
            pass
        case Expression(text=ast.DictComp(generators=[ast.comprehension(iter=ast.Tuple(elts=listed))])):
            group = ""
        case _:
            raise LookupError(f"{package}.{variable} is no register of classes")
    kinds = [meaning(Expression(found.module, each)) for each in listed]
    return Register(group, {kind.name: kind for kind in kinds if isinstance(kind, Class) and kind.name})


def options(module: str, variable: str) -> list[str]:
    """What a `Literal` of a module allows, or the keys of a dictionary: written out, or the names of what is in it."""
    match meaning(Expression(module, ast.Name(variable))):
        case Expression(text=ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=listed))):
            return [ast.literal_eval(each) for each in listed]
        case Expression(text=ast.Dict(keys=listed)):
            return [ast.literal_eval(each) for each in listed if each]
        case Expression(place, ast.DictComp(generators=[ast.comprehension(iter=ast.Tuple(elts=listed))])):
            return [_name(meaning(Expression(place, each))) for each in listed]
    raise LookupError(f"{module}.{variable} has no options")


def word(module: str, variable: str) -> str:
    """The text that a module calls so."""
    match meaning(Expression(module, ast.Name(variable))):
        case Expression(text=ast.Constant(value=str(text))):
            return text
    raise LookupError(f"{module}.{variable} is no text")


def literal(module: str, *variables: str) -> list[Any]:
    """The `Literal` types that a module calls so, for those who need them while it is not imported."""
    return [Literal[tuple(options(module, variable))] for variable in variables]


def _name(found: "Class | Expression | None") -> str:
    """Of a class, or of an object that is made with a name."""
    match found:
        case Class(name=name) if name:
            return name
        case Expression(text=ast.Call(keywords=[ast.keyword(arg="name", value=ast.Constant(value=str(name))), *_])):
            return name
    raise LookupError(f"{found} has no name")


def meaning(given: Expression) -> Class | Expression | None:
    """What a name stands for, if that is a class of this package, or something that is written out in it."""
    if not isinstance(given.text, ast.Name):
        return None
    name = given.text.id
    for part in _body(given.module):
        match part:
            case ast.ClassDef(name=str(found)) if found == name:
                return Class(given.module, part)
            case ast.Assign(targets=[ast.Name(id=str(found))], value=value) if found == name:
                return Expression(given.module, value)
            case ast.AnnAssign(target=ast.Name(id=str(found)), value=ast.expr() as value) if found == name:
                return Expression(given.module, value)
            case ast.ImportFrom(module=str(source), names=names):
                for each in names:
                    if name == (each.asname or each.name):
                        return meaning(Expression(source, ast.Name(each.name)))
    return None


@cache
def _body(module: str) -> list[ast.stmt]:
    """The statements of a module of this package; of no other."""
    place = ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    known = module.partition(".")[0] == "personae" and path.is_file()
    return list(_flat(ast.parse(path.read_text(encoding="utf-8")).body)) if known else []


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """With what stands below `if TYPE_CHECKING`: the names that a package imports when they are asked for."""
    for part in body:
        yield from part.body if isinstance(part, ast.If) else [part]
