"""What may cross between a client and the server. A kind of payload is one class that says everything about itself.

Wire, firewall, disclosure, dry run, report and card know no kind by name: they ask it what it means, how large it will
be, what is wrong with it and how it is measured. A new kind is therefore one more subclass of `Payload`, here or in the
file of the algorithm or layer that needs it.
"""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self, TypeGuard

import torch
from torch import Tensor

from personae.core.description import Description
from personae.core.finite import all_finite
from personae.core.layout import Layout
from personae.core.problem import Problem
from personae.core.quantities import GRADIENT, ROWS, SAMPLES, STATISTICS, UPDATE
from personae.words import counted

Scalar = bool | int | float | str | None
Arrays = dict[str, Tensor]
_FIGURE = re.compile(r"[0-9A-Za-z][0-9A-Za-z @:/()._%+-]{0,63}")
_MOST_FIGURES = 1000
_MOST_VARIED = 1e4  # times one and what a variance was before; an untrained network may change it a hundredfold
_LARGEST_FIGURE = 1e15  # sums and squares of many such are still finite
_MOST_PEOPLE = 100_000  # of one client; servers compare each of them with all others
_LONGEST_ROW = 1e4  # a class embedding is about as long as a feature; products of many such are still finite


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What is known of a run before anything crosses: a payload has to fit it, and its size follows from it."""

    layout: Layout  # of the backbone
    width: int  # of an embedding
    classes: int = 0  # of one client, where a size is asked for
    public_classes: int = 0
    clients: int = 0  # that are asked in a round, where a size is asked for
    figures: tuple[str, ...] = ("*",)  # declared names of figures, or patterns such as `clusters/*`
    max_samples: int = 100_000_000
    model: "ModelState | None" = None  # what clients of a round were sent and trained, without noise


class Payload(ABC):
    """Something that may leave or reach a client.

    Payloads are well-formed from the moment they are made; what is not raises ValueError.
    """

    meaning: ClassVar[str]  # what it tells whoever gets it, as the end of a sentence that begins with "It is"
    short: ClassVar[str]  # the same in two or three words
    is_template: ClassVar[bool] = False  # True: whoever holds it can recognise a person by it
    is_figure: ClassVar[bool] = False  # True: a number or a code about the work, and nothing that was learnt

    @abstractmethod
    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        """Named arrays and numbers that say everything about it."""

    @classmethod
    @abstractmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:
        """The reverse of `pack`; raises ValueError on anything that is not exactly what was expected."""

    @classmethod
    @abstractmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        """Its size before there is one."""

    def misfit(self, expected: Expectation) -> str | None:  # noqa: ARG002 - of kinds that can fail to fit
        """Why nothing can be done with it in this run, in one phrase."""
        return None

    def implausible(self, expected: Expectation) -> str | None:  # noqa: ARG002 - of kinds that have bounds
        """Why the firewall should not let it pass, in one phrase."""
        return None if all(map(all_finite, self.tensors)) else f"{type(self).__name__} holds values that are not finite"

    def measures(self, model: "ModelState") -> Mapping[str, float]:  # noqa: ARG002 - of kinds that have a length
        """How large it is beside those of the round's other clients, by what is measured; `model` is what was sent."""
        return {}

    def drawn_back(self, model: "ModelState", factors: Mapping[str, float]) -> Self:  # noqa: ARG002
        """The same with some of its measures smaller, each by its factor below one. Not every kind can be."""
        return self

    @property
    def identities(self) -> int | None:
        """How many of a client's identities it speaks of. All payloads of a message must agree on it."""
        return None

    @classmethod
    def description(cls) -> Description:
        return Description(cls.meaning, cls.short, cls.is_template, cls.is_figure)

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


def is_kind(candidate: Any) -> TypeGuard[type[Payload]]:
    """Whether it is a class of payloads that can be made and says itself what it means; a base class cannot say it."""
    if not (isinstance(candidate, type) and issubclass(candidate, Payload)):
        return False
    return not inspect.isabstract(candidate) and {"meaning", "short"} <= vars(candidate).keys()


def known_kinds(above: type[Payload] = Payload) -> dict[str, type[Payload]]:
    """Every kind that this process has a class for, by name."""
    found = {above.__name__: above} if is_kind(above) else {}
    for kind in above.__subclasses__():
        found |= known_kinds(kind)
    return found


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

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 4 * cls.part(expected.layout).size

    def misfit(self, expected: Expectation) -> str | None:
        part = self.part(expected.layout)
        if self.layout == part:
            return None
        difference = part.mismatch(dict(zip(self.layout.names, self.layout.shapes, strict=True)))
        return f"its model is of another network: {difference or 'its entries are in another order'}"

    def implausible(self, expected: Expectation) -> str | None:
        return super().implausible(expected) or self._impossible(expected.model)

    def _impossible(self, before: "ModelState | None") -> str | None:
        """What no training comes to: variances below zero, or far from those of the model that was sent."""
        places = self.layout.variance_places
        if before is None or not len(places):
            return None
        last = before.entries(self.layout)[places].to(self.flat.device)
        variances = self.flat[places]
        below, above = variances < 0, variances > _MOST_VARIED * (1 + last)
        if not bool((wrong := below | above).any()):
            return None
        first = int(wrong.nonzero()[0])
        where = "below zero" if below[first] else "far above those of the model that was sent"
        return f"{self.layout.name_at(int(places[first]))} holds variances {where}"

    def measures(self, model: "ModelState") -> Mapping[str, float]:
        """Of weights alone: statistics are larger by far, and a long step of the weights would hide in them."""
        step = self.flat - model.entries(self.layout).to(self.flat.device)
        return {UPDATE: float(step[: self.layout.trainable_size].norm())}

    def drawn_back(self, model: "ModelState", factors: Mapping[str, float]) -> Self:
        begin, flat = model.entries(self.layout).to(self.flat.device), self.flat.clone()
        weights = self.layout.trainable_size
        for quantity, part in ((UPDATE, slice(0, weights)), (STATISTICS, slice(weights, None))):
            if quantity in factors:
                flat[part] = begin[part].lerp(self.flat[part], factors[quantity])
        return type(self)(self.layout, flat)

    @property
    def bytes(self) -> int:
        return self.flat.nbytes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.flat,)


class ModelState(NetworkVector):
    """Weights and float buffers of the backbone."""

    meaning = "the network's weights; from a client, after training on its faces"
    short = "weights"

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

    meaning = (
        "the network's weights; from a client, after training on its faces, without the running statistics of BatchNorm"
    )
    short = "weights"

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout.without(layout.statistics)


class ModelWithoutBatchNorm(NetworkVector):
    """A model without statistics, scales and shifts of BatchNorm, which stay with the client."""

    meaning = "the network's weights; from a client, after training on its faces, without anything of BatchNorm"
    short = "weights"

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout.without(layout.batch_norm)


class Gradient(NetworkVector):
    """A direction in which to move the weights: a mean of gradients, or a momentum."""

    meaning = "a direction for the weights, computed on the client's faces: a mean gradient or a momentum"
    short = "gradients"

    @classmethod
    def part(cls, layout: Layout) -> Layout:
        return layout.only(layout.names[: layout.trainable])

    def measures(self, model: ModelState) -> Mapping[str, float]:  # noqa: ARG002 - a direction begins nowhere
        return {GRADIENT: float(self.flat.norm())}

    def drawn_back(self, model: ModelState, factors: Mapping[str, float]) -> Self:  # noqa: ARG002
        return type(self)(self.layout, self.flat * factors.get(GRADIENT, 1.0))


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

    @property
    def longest(self) -> float:
        """The length of the longest row."""
        return float(self.vectors.norm(dim=1).max()) if len(self.vectors) else 0.0

    def implausible(self, expected: Expectation) -> str | None:
        if problem := super().implausible(expected):
            return problem
        long = self.longest > _LONGEST_ROW
        return f"{type(self).__name__} holds a row that is longer than {_LONGEST_ROW:,.0f}" if long else None

    def measures(self, model: ModelState) -> Mapping[str, float]:  # noqa: ARG002
        return {ROWS: self.longest}


class ClassEmbeddings(_Vectors):
    """One vector for each identity that a client holds: it says something about a person."""

    meaning = "a vector for each of the client's people: a biometric template"
    short = "a vector for each person"
    is_template = True

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 4 * expected.width * expected.classes

    def misfit(self, expected: Expectation) -> str | None:
        width = self.vectors.shape[1]
        if width == expected.width:
            return None
        return f"its class embeddings hold {width} numbers, the network gives {expected.width}"

    def implausible(self, expected: Expectation) -> str | None:
        if (claimed := len(self.vectors)) > _MOST_PEOPLE:
            return f"it claims {claimed:,} people, and {_MOST_PEOPLE:,} are the most that one client may have"
        return super().implausible(expected)

    @property
    def identities(self) -> int:
        return len(self.vectors)


class PublicEmbeddings(_Vectors):
    """One vector for each identity of a public data set that all parties have."""

    meaning = "a vector for each person of the public faces, trained beside the client's own"
    short = "vectors of public people"

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 4 * expected.width * expected.public_classes

    def misfit(self, expected: Expectation) -> str | None:
        rows, width = self.vectors.shape
        if (rows, width) == (expected.public_classes, expected.width):
            return None
        wanted = f"{expected.public_classes} of {expected.width}"
        return f"its public embeddings are {rows} rows of {width} numbers, not {wanted}"


@dataclass(frozen=True, eq=False)
class Aliases(Payload):
    """A token for each identity that a client holds, the same wherever the same person is held: it says who is shared.

    A token is a keyed digest of the person's name. Without the key it does not tell who the person is; with the key,
    names can be tried one by one.
    """

    meaning = "a keyed token for each of the client's people, which tells who is held by several clients"
    short = "tokens of people"

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

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 8 * expected.classes

    @property
    def identities(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Count(Payload):
    """How many samples are behind an update."""

    meaning = "the number of samples behind an update"
    short = "counts"
    is_figure = True

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

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:  # noqa: ARG003
        return 8

    def implausible(self, expected: Expectation) -> str | None:
        return None if 0 < self.value <= expected.max_samples else f"it claims {counted(self.value, 'sample')}"

    def measures(self, model: ModelState) -> Mapping[str, float]:  # noqa: ARG002
        return {SAMPLES: self.value}

    def drawn_back(self, model: ModelState, factors: Mapping[str, float]) -> Self:  # noqa: ARG002
        return type(self)(max(1, round(self.value * factors.get(SAMPLES, 1.0))))


@dataclass(frozen=True)
class Scalars(Payload):
    """Named figures, such as a mean loss or an accuracy. A name is a short word of a program, and no text."""

    meaning = "figures under declared names, such as a mean loss or rates"
    short = "figures"
    is_figure = True

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

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:  # noqa: ARG003 - most send one figure
        return 8

    def misfit(self, expected: Expectation) -> str | None:
        """Records and reports hold every figure, so none may spoil them: names as declared, values finite."""
        if undeclared := self.undeclared(expected.figures):
            return f"it sends {counted(len(undeclared), 'figure')} under names that are not declared"
        if not all(abs(value) <= _LARGEST_FIGURE for value in self.values.values()):
            return "its figures are not finite, or too large to be any"
        return None

    def undeclared(self, names: tuple[str, ...]) -> list[str]:
        """The figures that none of these names or patterns declares."""
        return [name for name in self.values if not any(fnmatchcase(name, each) for each in names)]


@dataclass(frozen=True)
class FailureCode(Payload):
    """Why a client could not do its work: one of a closed list, and not a word of its own."""

    meaning = "why the client could not do its work, as one of a list of codes"
    short = "failure codes"
    is_figure = True

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

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:  # noqa: ARG003
        return 8


def _only(expected: tuple[str, ...], found: Mapping[str, object], kind: type[Payload]) -> None:
    if set(found) != set(expected):
        raise ValueError(f"{kind.__name__} holds {sorted(found)}, expected {sorted(expected)}")
