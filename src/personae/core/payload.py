"""The kinds of thing that may cross between a client and the server. There are no others."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from personae.core.layout import Layout

Scalar = bool | int | float | str | None
Arrays = dict[str, Tensor]


class Payload(ABC):
    """Something that may leave or reach a client: it knows its arrays and numbers, hence its bytes."""

    @abstractmethod
    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        """Named arrays and numbers that say everything about it."""

    @classmethod
    @abstractmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:
        """The reverse of `pack`; raises ValueError on anything that is not exactly what was expected."""

    @property
    def bytes(self) -> int:
        """Size of the content: what its arrays hold, and eight bytes a number."""
        arrays, scalars = self.pack()
        return sum(array.nbytes for array in arrays.values()) + 8 * len(scalars)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything in it that could be poisoned with values that are not finite."""
        arrays, scalars = self.pack()
        numbers = [value for value in scalars.values() if isinstance(value, float)]
        return (*arrays.values(), torch.tensor(numbers, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class ModelState(Payload):
    """Weights and float buffers of the backbone, as one vector in the order of its layout."""

    layout: Layout
    flat: Tensor

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {name: view.contiguous() for name, view in self.layout.views(self.flat).items()}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:
        _only((), scalars, cls)
        return cls(layout, layout.flatten(arrays))

    @property
    def bytes(self) -> int:
        return self.flat.nbytes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.flat,)


@dataclass(frozen=True, eq=False)
class _Rows(Payload):
    rows: Tensor  # [classes, embedding]

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"rows": self.rows.contiguous()}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only(("rows",), arrays, cls)
        _only((), scalars, cls)
        rows = arrays["rows"]
        if rows.ndim != 2 or rows.dtype != torch.float32:
            raise ValueError(f"{cls.__name__} is a {rows.dtype} array of shape {tuple(rows.shape)}, not float32 rows")
        return cls(rows)


class ClassEmbeddings(_Rows):
    """One vector for each identity that a client holds: it says something about a person."""


class PublicEmbeddings(_Rows):
    """One vector for each identity of a public data set that all parties have."""


@dataclass(frozen=True)
class Count(Payload):
    """How many samples an update rests on."""

    value: int

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {}, {"value": self.value}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only((), arrays, cls)
        _only(("value",), scalars, cls)
        value = scalars["value"]
        if type(value) is not int:
            raise ValueError(f"Count is {value!r}, not a whole number")
        return cls(value)


@dataclass(frozen=True)
class Scalars(Payload):
    """Named figures, such as a mean loss or an accuracy."""

    values: Mapping[str, float]

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {}, dict(self.values)

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only((), arrays, cls)
        values = {}
        for name, value in scalars.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"Scalars holds {name} = {value!r}, not a number")
            values[name] = float(value)
        return cls(values)


KINDS: tuple[type[Payload], ...] = (ModelState, ClassEmbeddings, PublicEmbeddings, Count, Scalars)


def _only(expected: tuple[str, ...], found: Mapping[str, object], kind: type[Payload]) -> None:
    if set(found) != set(expected):
        raise ValueError(f"{kind.__name__} holds {sorted(found)}, expected {sorted(expected)}")
