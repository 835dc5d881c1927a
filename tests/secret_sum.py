"""A secret sum as a layer, small enough to read: clients send masked vectors, and only their sum is free of masks.

It is a toy. All parties know each other's names and one key beforehand, nobody may vanish, and numbers are floats. What
is real is what the server gets: each vector alone is noise, and all of them together are the sum of the updates.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from personae.core.algorithm import Client, ClientInfo, Reply, Server, Types
from personae.core.layer import Layer, Layered, exchanged, innermost, recast
from personae.core.layout import Layout
from personae.core.message import Broadcast, LocalState, Message, ServerState, alternatives
from personae.core.payload import Arrays, Count, Expectation, NetworkVector, Payload, PublicEmbeddings, Scalar, Scalars
from personae.core.rng import generator
from toys import NAMES

SIZE = 1e3  # of the masks: far longer than any update, and short enough for float64 to add them up


@dataclass(frozen=True, eq=False)
class Masked(Payload):
    """Numbers that say nothing before those of all clients are added up."""

    meaning = "numbers that say nothing before those of all clients are added up"
    short = "masked numbers"

    values: Tensor  # float64

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 8 * expected.layout.size  # of a masked model, beside which the others are small

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"values": self.values}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:
        return cls(arrays["values"])


@dataclass(frozen=True, kw_only=True)
class SecretSum(Layer):
    """Every field of an update is masked."""

    name: ClassVar[str] = "secret-sum"
    hides_single_updates: ClassVar[bool] = True

    key: int = 7  # which the clients have and the server has not
    parties: tuple[str, ...] = NAMES

    def types(self, inner: Types) -> Types:
        hidden = {name: Masked | None if None in _kinds(hint) else Masked for name, hint in inner.up.hints().items()}
        return replace(inner, up=exchanged(inner.up, **hidden))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        up, kept = around.inner.local(down, private, client)
        weight = float(up.samples.value) if _by_samples(around) else 1.0
        sent = {name: getattr(up, name) for name in up.hints()}
        masked = {
            name: payload and self._masked(name, _values(payload, weight), client) for name, payload in sent.items()
        }
        return around.types.up(**masked), kept

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        ups = [reply.up for reply in replies]
        assert len(ups) == len(self.parties), "masks of clients that vanished do not cancel"
        sent = [name for name in around.types.up.hints() if getattr(ups[0], name) is not None]
        sums = {name: sum(getattr(up, name).values for up in ups) for name in sent}
        weight = float(sums["samples"][0]) if _by_samples(around) else float(len(ups))
        kinds = around.inner.types.up.hints()
        means = {name: _mean(_kinds(kinds[name])[0], sums[name] / weight, weight, server) for name in sent}
        everybody = around.inner.types.up(**{**dict.fromkeys(kinds), **means})
        merged = around.inner.merge(state, [Reply(ClientInfo("everybody", -1), everybody)], server)
        return recast(around.types.state, merged)

    def _masked(self, field: str, values: Tensor, client: Client) -> Masked:
        """One mask with each of the others: the first of the two adds it, the other takes it away."""
        for other in self.parties:
            if other != client.info.name:
                pair = sorted((client.info.name, other))
                noise = generator(self.key, field, client.round, *pair)
                mask = SIZE * torch.randn(values.shape, generator=noise, dtype=torch.float64)
                values = values + mask if client.info.name == pair[0] else values - mask
        return Masked(values)


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The payload kind of a field, and None after it where the field may be empty."""
    return tuple(None if kind is NoneType else kind for kind in alternatives(hint))


def _by_samples(around: Layered) -> bool:
    return getattr(innermost(around), "weighting", "uniform") == "samples"


def _values(payload: Payload, weight: float) -> Tensor:
    if isinstance(payload, NetworkVector):
        return payload.flat.double().cpu() * weight
    if isinstance(payload, PublicEmbeddings):
        return payload.vectors.double().cpu().flatten() * weight
    return torch.tensor([weight] if isinstance(payload, Count) else [], dtype=torch.float64)


def _mean(kind: type[Payload], mean: Tensor, weight: float, server: Server) -> Payload:
    if issubclass(kind, NetworkVector):
        return kind(kind.part(server.backbone.layout), mean.float())
    if kind is PublicEmbeddings:
        return PublicEmbeddings(mean.float().reshape(-1, server.backbone.width))
    return Count(round(weight)) if kind is Count else Scalars({})
