"""What crosses in a secret sum: keys, shares, who takes part, and numbers under masks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from personae.core.layout import Layout
from personae.core.payload import Arrays, Count, Expectation, NetworkVector, Payload, PublicEmbeddings, Scalar
from personae.parts.secret_sums import PUBLIC, SEALED, SHARE, is_public


@dataclass(frozen=True, eq=False)
class _ByOwner(Payload):
    """Bytes of one length for each of some clients, which are named by their numbers."""

    owners: Tensor  # int64 [clients]
    content: Tensor  # uint8 [clients, length]
    length: ClassVar[int]

    def __post_init__(self) -> None:
        if self.owners.dtype != torch.int64 or self.owners.ndim != 1 or not _distinct(self.owners):
            raise ValueError(f"{type(self).__name__} does not say of which clients it is, each once")
        if self.content.dtype != torch.uint8 or self.content.shape != (len(self.owners), self.length):
            raise ValueError(f"{type(self).__name__} does not hold {self.length} bytes for each of them")

    @classmethod
    def made(cls, content: Mapping[int, bytes]) -> Self:
        return cls(as_numbers(content), as_tensor(b"".join(content.values())).reshape(-1, cls.length))

    def by_owner(self) -> dict[int, bytes]:
        return {owner: row.numpy().tobytes() for owner, row in zip(self.owners.tolist(), self.content, strict=True)}

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"owners": self.owners, "content": self.content}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        if set(arrays) != {"owners", "content"} or scalars:
            raise ValueError(f"{cls.__name__} holds something else than owners and content")
        return cls(arrays["owners"], arrays["content"])

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        """Where everybody is a neighbour."""
        return max(0, expected.clients - 1) * (8 + cls.length)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class OwnKeys(Payload):
    """A client's keys for one round: the first encrypts shares for it, the second makes its masks."""

    meaning = "public keys of the client, fresh in every round: they say nothing about faces"
    short = "public keys"

    content: Tensor  # uint8

    def __post_init__(self) -> None:
        if self.content.dtype != torch.uint8 or self.content.shape != (2 * PUBLIC,):
            raise ValueError("OwnKeys is not two public keys")

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"content": self.content}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        if set(arrays) != {"content"} or scalars:
            raise ValueError("OwnKeys holds something else than keys")
        return cls(arrays["content"])

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:  # noqa: ARG003
        return 2 * PUBLIC

    def misfit(self, expected: Expectation) -> str | None:  # noqa: ARG002
        """Others compute with them, and must not fail by them."""
        keys = as_bytes(self.content)
        return None if is_public(keys[:PUBLIC]) and is_public(keys[PUBLIC:]) else "its keys are none"


class PublicKeys(_ByOwner):
    """The keys of others, for one round."""

    meaning = "public keys of other clients, fresh in every round: they say nothing about faces"
    short = "public keys"
    length = 2 * PUBLIC


class SealedShares(_ByOwner):
    """Shares of a client's secrets of one round for each of its neighbours, or those that came for one client."""

    meaning = "shares of the secrets of one round, encrypted for other clients: the server cannot read them"
    short = "encrypted shares"
    length = SEALED


class OpenedShares(_ByOwner):
    """One share of a secret of each neighbour: of its seed if its vector is in the sum, and of its key if not."""

    meaning = "shares of the secrets of one round, by which the server takes the masks out of the sum"
    short = "shares"
    length = SHARE


@dataclass(frozen=True, eq=False)
class Members(Payload):
    """Clients by their numbers in the federation."""

    meaning = "the numbers of the clients that take part in a sum"
    short = "numbers of clients"

    order: Tensor  # int64

    def __post_init__(self) -> None:
        if self.order.dtype != torch.int64 or self.order.ndim != 1 or not _distinct(self.order):
            raise ValueError("Members does not name clients, each once")

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"order": self.order}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        if set(arrays) != {"order"} or scalars:
            raise ValueError("Members holds something else than an order")
        return cls(arrays["order"])

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 8 * expected.clients


@dataclass(frozen=True, eq=False)
class Masked(Payload):
    """Numbers modulo 2^64 of which each alone is uniform, whatever is under the mask. Of each kind there is a class."""

    values: Tensor  # int64
    of: ClassVar[type[Payload]]

    @classmethod
    def length(cls, expected: Expectation) -> int:
        """How many numbers there are."""
        if issubclass(cls.of, NetworkVector):
            return cls.of.part(expected.layout).size
        if issubclass(cls.of, PublicEmbeddings):
            return expected.public_classes * expected.width
        return 1 if issubclass(cls.of, Count) else 2 * len(named(expected.figures))

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 8 * cls.length(expected)

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"values": self.values}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        if set(arrays) != {"values"} or scalars:
            raise ValueError(f"{cls.__name__} holds something else than values")
        return cls(arrays["values"])

    def misfit(self, expected: Expectation) -> str | None:
        if self.values.dtype == torch.int64 and self.values.shape == (self.length(expected),):
            return None
        return f"its {type(self).__name__} does not hold {self.length(expected)} whole numbers"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return ()


@cache  # a message is of the one type that was declared
def masked(kind: type[Payload]) -> type[Masked]:
    """The kind under a mask."""
    words = {"meaning": f"uniform numbers, of which the sum over all clients is known: {kind.meaning}"}
    return type(f"Masked{kind.__name__}", (Masked,), {**words, "short": f"masked {kind.short}", "of": kind})


def named(figures: Iterable[str]) -> list[str]:
    """Those with a name of their own: of a pattern nobody knows beforehand which figures there will be."""
    return [name for name in figures if "*" not in name]


def as_numbers(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64)


def as_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _distinct(numbers: Tensor) -> bool:
    return len(set(numbers.tolist())) == len(numbers)
