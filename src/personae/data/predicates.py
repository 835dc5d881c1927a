"""A tiny language over attributes: names, `!` (not), `&` (and), `|` (or) and parentheses, binding in that order."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.errors import ConfigError

Truth = NDArray[np.bool_]
_Node = Callable[[Mapping[str, Truth]], Truth]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9_]+)|(?P<sign>[!&|()]))")
_DEEPEST = 50


@dataclass(frozen=True)
class Predicate:
    """A condition that an image's attributes fulfil or not."""

    text: str
    names: tuple[str, ...]
    _node: _Node

    def fits(self, columns: Mapping[str, NDArray[Any]]) -> Truth:
        known = {name: values for name, values in columns.items() if values.dtype == np.bool_}
        for name in self.names:
            if name not in known:
                raise ConfigError(
                    f"predicate {self.text!r}: no attribute is called {name!r}; {_hint(name, list(known))}"
                )
        return self._node(known)


def parse(text: str) -> Predicate:
    return _Parser(text).predicate()


class _Parser:
    """One method per level of the grammar, each returning what it has read as a function of the columns."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._next = 0
        self._depth = 0
        self._names: list[str] = []

    def predicate(self) -> Predicate:
        node = self._either()
        if self._peek():
            raise self._error(f"unexpected {self._peek()!r}")
        return Predicate(self._text, tuple(dict.fromkeys(self._names)), node)

    def _scan(self) -> Iterator[str]:
        position, end = 0, len(self._text.rstrip())
        while position < end:
            token = _TOKEN.match(self._text, position)
            if token is None:
                raise self._error(f"cannot read {self._text[position:].strip()[:20]!r}")
            yield token["name"] or token["sign"]
            position = token.end()

    def _either(self) -> _Node:
        nodes = [self._both()]
        while self._accept("|"):
            nodes.append(self._both())
        return lambda columns: np.logical_or.reduce([node(columns) for node in nodes])

    def _both(self) -> _Node:
        nodes = [self._single()]
        while self._accept("&"):
            nodes.append(self._single())
        return lambda columns: np.logical_and.reduce([node(columns) for node in nodes])

    def _single(self) -> _Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("nested too deeply")
        try:
            if self._accept("!"):
                inner = self._single()
                return lambda columns: np.logical_not(inner(columns))
            if self._accept("("):
                inner = self._either()
                if not self._accept(")"):
                    raise self._error("a parenthesis is not closed")
                return inner
            return self._attribute()
        finally:
            self._depth -= 1

    def _attribute(self) -> _Node:
        name = self._peek()
        if not name or name in "!&|()":
            raise self._error(f"an attribute is missing {'before ' + repr(name) if name else 'at the end'}")
        self._next += 1
        self._names.append(name)
        return lambda columns: columns[name]

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _accept(self, sign: str) -> bool:
        found = self._peek() == sign
        self._next += found
        return found

    def _error(self, complaint: str) -> ConfigError:
        return ConfigError(f'predicate {self._text!r}: {complaint}; write it like "Male & !(Young | Blond_Hair)"')


def _hint(name: str, known: list[str]) -> str:
    lowered = {candidate.lower(): candidate for candidate in known}
    if nearest := difflib.get_close_matches(name.lower(), lowered, n=1):
        return f"did you mean {lowered[nearest[0]]!r}?"
    return f"there are {', '.join(sorted(known))}" if known else "these faces have no attributes"
