"""Typed records: what crosses between the parties, and what each of them keeps."""

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Union, get_args, get_origin

from torch import Tensor

from personae.core.payload import FailureCode, ModelState, Payload, Scalars, is_kind


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _can_be_kept(kind: Any) -> bool:
    return kind in (Tensor, bool, int, float, str) or is_kind(kind)


class Undeclared(TypeError):
    """Something was about to cross that no type declares."""


class Record:
    """A frozen dataclass whose fields can all be written as named arrays and numbers."""

    def __init_subclass__(cls) -> None:
        for name, annotation in typing.get_type_hints(cls).items():  # inherited ones, too
            kinds = [kind for kind in alternatives(annotation) if kind is not types.NoneType]
            for kind in kinds:
                if not cls._allows(kind):
                    raise TypeError(f"{cls.__qualname__}.{name}: {_name(kind)} {cls._refusal()}")
            if len(kinds) > 1:
                raise TypeError(f"{cls.__qualname__}.{name}: either of {len(kinds)} types; bytes do not tell which")

    @classmethod
    def _allows(cls, kind: Any) -> bool:
        if get_origin(kind) in (dict, Mapping):
            key, value = get_args(kind)
            return key is str and _can_be_kept(value)
        return _can_be_kept(kind)

    @classmethod
    def _refusal(cls) -> str:
        return "cannot be kept: a record holds payloads, tensors, numbers, strings, or dicts of these by name"

    @classmethod
    def hints(cls) -> Mapping[str, Any]:
        """The declared type of every field, in order."""
        return _hints(cls)  # type: ignore[arg-type]


class Message(Record):
    """What crosses between a client and the server: fields of the declared payload kinds and nothing else.

    A field of any other type (a tensor, a dict, a module) is refused when the class is created, a value of any other
    type when the message is.
    """

    @classmethod
    def _allows(cls, kind: Any) -> bool:
        return is_kind(kind)

    @classmethod
    def _refusal(cls) -> str:
        return "may not cross: a message holds payloads only, subclasses of Payload that say what they mean"

    def __post_init__(self) -> None:
        for name, annotation in self.hints().items():
            value = getattr(self, name)
            if type(value) not in alternatives(annotation):
                found = f"{type(value).__name__} is not {_name(annotation)}"
                raise Undeclared(f"{type(self).__qualname__}.{name}: {found}")

    @classmethod
    def kinds(cls) -> dict[str, type[Payload]]:
        """Field -> payload kind: what a message of this type lets across."""
        return {
            name: next(kind for kind in alternatives(annotation) if kind is not types.NoneType)
            for name, annotation in cls.hints().items()
        }

    @classmethod
    def payloads(cls) -> dict[str, str]:
        """The same by name."""
        return {name: kind.__name__ for name, kind in cls.kinds().items()}

    def fields(self) -> dict[str, Payload]:
        """What it holds, by field; fields that were left empty are not among them."""
        return {name: value for name in self.hints() if isinstance(value := getattr(self, name), Payload)}

    def parts(self) -> list[Payload]:
        """The same without names."""
        return list(self.fields().values())


@dataclass(frozen=True, kw_only=True)
class Broadcast(Message):
    """What a client receives: at least the model it starts from."""

    model: ModelState


@dataclass(frozen=True, kw_only=True)
class Nothing(Message):
    """What leaves a client in a stage that only the server works in."""


@dataclass(frozen=True, kw_only=True)
class ClientEvaluation(Message):
    """What a client says about the model it uses: figures alone."""

    metrics: Scalars


@dataclass(frozen=True, kw_only=True)
class Trouble(Message):
    """What a client says when it could not do its work: a code. The details stay with the client."""

    failure: FailureCode


@dataclass(frozen=True, kw_only=True)
class LocalState(Record):
    """What a client keeps from round to round and never sends."""


@dataclass(frozen=True, kw_only=True)
class ServerState(Record):
    """What the server knows: at least the model. `memory` is the engine's: what its next step builds on."""

    model: ModelState
    memory: dict[str, Tensor] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """What the server's own work in the last round has to say about itself, such as its loss."""
        return {}

    @classmethod
    def by_client(cls) -> tuple[str, ...]:
        """The fields that map clients' names to what each of them has sent."""
        mappings = {name: get_args(kind) for name, kind in cls.hints().items() if get_origin(kind) in (dict, Mapping)}
        return tuple(name for name, (_, value) in mappings.items() if is_kind(value))

    def public_vectors(self) -> Tensor | None:
        """Class embeddings of the public people, where the server has come to any."""
        return None


@cache  # every message is checked against it
def _hints(kind: Any) -> Mapping[str, Any]:
    resolved = typing.get_type_hints(kind)
    return {each.name: resolved[each.name] for each in fields(kind)}


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
