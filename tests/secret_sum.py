"""A secret sum as a layer, small enough to read: clients send masked vectors, and only their sum is free of masks.

It is a toy. All parties know each other's names and one key beforehand, nobody may vanish, and numbers are floats. What
is real is what the server gets: each vector alone is noise, and all of them together are the sum of the updates.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client, ClientInfo, Reply, Server, Types
from personae.core.layer import Layer, Layered, exchanged, innermost, recast
from personae.core.layout import Layout
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import Arrays, Count, Expectation, NetworkVector, Payload, Scalar, Scalars
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
        return replace(inner, up=exchanged(inner.up, **dict.fromkeys(inner.up.hints(), Masked)))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        up, kept = around.inner.local(down, private, client)
        weight = _weight(around, up)
        masked = {}
        for name in up.hints():
            values = _values(getattr(up, name), weight)
            for other in self.parties:
                if other != client.info.name:
                    pair = sorted((client.info.name, other))
                    noise = generator(self.key, name, client.round, *pair)
                    mask = SIZE * torch.randn(values.shape, generator=noise, dtype=torch.float64)
                    values = values + mask if client.info.name == pair[0] else values - mask
            masked[name] = Masked(values)
        return around.types.up(**masked), kept

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        ups = [reply.up for reply in replies]
        assert len(ups) == len(self.parties), "masks of clients that vanished do not cancel"
        sums = {name: sum(getattr(up, name).values for up in ups) for name in around.types.up.hints()}
        weight = float(sums["samples"][0])
        everybody = around.inner.types.up(
            **_mean(around.inner.types.up, sums, weight, state.model.layout),
        )
        merged = around.inner.merge(state, [Reply(ClientInfo("everybody", -1), everybody)], server)
        return recast(around.types.state, merged)


def _weight(around: AnyAlgorithm, up: Any) -> float:
    return float(up.samples.value) if getattr(innermost(around), "weighting", "uniform") == "samples" else 1.0


def _values(payload: Payload, weight: float) -> Tensor:
    if isinstance(payload, NetworkVector):
        return payload.flat.double().cpu() * weight
    return torch.tensor([weight] if isinstance(payload, Count) else [], dtype=torch.float64)


def _mean(kind: type[Message], sums: Mapping[str, Tensor], weight: float, layout: Layout) -> dict[str, Payload]:
    made: dict[str, Payload] = {}
    for name, hint in kind.hints().items():
        if issubclass(hint, NetworkVector):
            made[name] = hint(hint.part(layout), (sums[name] / weight).float())
        else:
            made[name] = Count(round(weight)) if hint is Count else Scalars({})
    return made
