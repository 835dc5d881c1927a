"""The kinds of thing that may cross between a client and the server. There are no others."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from personae.core.layout import Layout
from personae.core.problem import Problem

Scalar = bool | int | float | str | None
Arrays = dict[str, Tensor]
_FIGURE = re.compile(r"[0-9A-Za-z][0-9A-Za-z @:/()._%+-]{0,63}")
_MOST_FIGURES = 1000


class Payload(ABC):
    """Something that may leave or reach a client: it knows its arrays and numbers, hence its bytes.

    Payloads are well-formed from the moment they are made; what is not raises ValueError.
    """

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
class NetworkVector(Payload):
    """Numbers for entries of the backbone, as one vector in the order of its layout. Each kind says which entries."""

    layout: Layout
    flat: Tensor

    def __post_init__(self) -> None:
        if self.flat.dtype != torch.float32 or self.flat.shape != (self.layout.size,):
            found = f"{self.flat.dtype} values of shape {tuple(self.flat.shape)}"
            raise ValueError(f"{type(self).__name__} holds {found}, expected {self.layout.size} of torch.float32")

    @classmethod
    @abstractmethod
    def part(cls, layout: Layout) -> Layout:
        """The entries that it holds, of all those of a backbone."""

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {name: view.contiguous() for name, view in self.layout.views(self.flat.cpu()).items()}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:
        _only((), scalars, cls)
        part = cls.part(layout)
        return cls(part, part.flatten(arrays))

    @property
    def bytes(self) -> int:
        return self.flat.nbytes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.flat,)


class ModelState(NetworkVector):
    """Weights and float buffers of the backbone."""

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout

    def entries(self, part: Layout) -> Tensor:
        """The vector of a part of its entries."""
        if part == self.layout:
            return self.flat
        views = self.layout.views(self.flat)
        return part.flatten({name: views[name] for name in part.names})

    def with_entries(self, part: Layout, flat: Tensor) -> "ModelState":
        """The model with other values for a part of its entries."""
        model = ModelState(self.layout, self.flat.clone())
        views = self.layout.views(model.flat)
        for name, value in part.views(flat).items():
            views[name].copy_(value)
        return model


class ModelWithoutStatistics(NetworkVector):
    """A model without the running statistics of BatchNorm, which stay with the client."""

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout.without(layout.statistics)


class ModelWithoutBatchNorm(NetworkVector):
    """A model without statistics, scales and shifts of BatchNorm, which stay with the client."""

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout.without(layout.batch_norm)


class Gradient(NetworkVector):
    """A direction in which to move the weights: a mean of gradients, or a momentum."""

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout.only(layout.names[: layout.trainable])


@dataclass(frozen=True, eq=False)
class _Vectors(Payload):
    vectors: Tensor  # [classes, embedding]

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or self.vectors.dtype != torch.float32:
            found = f"a {self.vectors.dtype} array of shape {tuple(self.vectors.shape)}"
            raise ValueError(f"{type(self).__name__} is {found}, not float32 rows")

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"vectors": self.vectors.contiguous()}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only(("vectors",), arrays, cls)
        _only((), scalars, cls)
        return cls(arrays["vectors"])


class ClassEmbeddings(_Vectors):
    """One vector for each identity that a client holds: it says something about a person."""


class PublicEmbeddings(_Vectors):
    """One vector for each identity of a public data set that all parties have."""


@dataclass(frozen=True, eq=False)
class Aliases(Payload):
    """A token for each identity that a client holds, the same wherever the same person is held: it says who is shared.

    A token is a keyed digest of the person's name. Without the key it does not tell who the person is; with the key,
    names can be tried one by one.
    """

    tokens: Tensor  # int64 [classes]

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.dtype != torch.int64:
            found = f"a {self.tokens.dtype} array of shape {tuple(self.tokens.shape)}"
            raise ValueError(f"Aliases is {found}, not one int64 token for each identity")
        if len(torch.unique(self.tokens)) < len(self.tokens):
            raise ValueError("Aliases holds a token twice: one client has one row for each person")

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"tokens": self.tokens.contiguous()}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only(("tokens",), arrays, cls)
        _only((), scalars, cls)
        return cls(arrays["tokens"])


@dataclass(frozen=True)
class Count(Payload):
    """How many samples an update rests on."""

    value: int

    def __post_init__(self) -> None:
        if type(self.value) is not int:
            raise ValueError(f"Count is {self.value!r}, not a whole number")
        if not -(2**63) <= self.value < 2**63:
            raise ValueError("Count has more than 64 bits")

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {}, {"value": self.value}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only((), arrays, cls)
        _only(("value",), scalars, cls)
        return cls(scalars["value"])  # type: ignore[arg-type]  # it is checked there


@dataclass(frozen=True)
class Scalars(Payload):
    """Named figures, such as a mean loss or an accuracy. A name is a short word of a program, and no text."""

    values: Mapping[str, float]

    def __post_init__(self) -> None:
        if len(self.values) > _MOST_FIGURES:
            raise ValueError(f"Scalars holds {len(self.values)} figures, more than {_MOST_FIGURES}")
        for name, value in self.values.items():
            if not _FIGURE.fullmatch(name):
                raise ValueError(f"Scalars holds {name!r}, which is no name of a figure")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"Scalars holds {name} = {value!r}, not a number")
        object.__setattr__(self, "values", {name: float(value) for name, value in self.values.items()})

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {}, dict(self.values)

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only((), arrays, cls)
        return cls(dict(scalars))  # type: ignore[arg-type]  # they are checked there


@dataclass(frozen=True)
class FailureCode(Payload):
    """Why a client could not do its work: one of a closed list, and not a word of its own."""

    value: Problem

    def __post_init__(self) -> None:
        if type(self.value) is not Problem:
            raise ValueError("FailureCode is none of the known codes")  # what it is instead is not repeated

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {}, {"value": self.value.value}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        _only((), arrays, cls)
        _only(("value",), scalars, cls)
        return cls(next((problem for problem in Problem if problem.value == scalars["value"]), None))  # type: ignore[arg-type]  # it is checked there


KINDS: tuple[type[Payload], ...] = (
    ModelState,
    ModelWithoutStatistics,
    ModelWithoutBatchNorm,
    Gradient,
    ClassEmbeddings,
    PublicEmbeddings,
    Aliases,
    Count,
    Scalars,
    FailureCode,
)


def _only(expected: tuple[str, ...], found: Mapping[str, object], kind: type[Payload]) -> None:
    if set(found) != set(expected):
        raise ValueError(f"{kind.__name__} holds {sorted(found)}, expected {sorted(expected)}")
