"""Differential privacy for each client without trust in the server: every client adds noise to its own update.

client: y_i <- x + min(1, C / ||y_i - x||) (y_i - x) + z C xi_i, of the entries that it sends; xi_i Gaussian
        no losses and no counts
server: as the algorithm has it, all clients alike

The mean of n clients has the noise of one over sqrt(n), where a trusted server would get along with that over n.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client, Reply, Server, Types
from personae.core.layer import Layer, Layered, extended, recast
from personae.core.mechanism import Mechanism
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.layers.bounding import (
    counted_alike,
    require_model_alone,
    shortened,
    with_sane_variances,
    without_figures,
)
from personae.parts.secret_noise import Randomness, gaussian, new_key


@dataclass(frozen=True, kw_only=True)
class Kept(LocalState):
    """What a client keeps besides: with it, a round that is done again sends the same noise again."""

    noise_key: Tensor


@dataclass(frozen=True, kw_only=True)
class LocalNoise(Layer):
    """Every client adds noise to its own update, no longer than `norm` before, so that not even the server sees it.

    What is hidden is everything that a client holds: the bound is for any two sets of faces that it might have, and it
    pays for every round in which it may be asked. This takes far more noise than the layer `noise`. Losses, counts and
    the statistics of BatchNorm are handled as there.
    """

    name: ClassVar[str] = "local-noise"
    noisy: ClassVar[bool] = True

    norm: float  # C: the longest update before noise
    multiplier: float  # z: the standard deviation of the noise of one client, over the bound
    randomness: Randomness = "secret"  # seed: the noise can be had again, and subtracted, by whoever knows the seed

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf or not 0 < self.multiplier < math.inf:
            raise ValueError("norm and multiplier must be positive and finite")

    @property
    def mechanism(self) -> Mechanism:
        # From one end of the ball of updates to the other it is twice the bound.
        return Mechanism(
            multiplier=self.multiplier / 2,
            unit="client",
            against="server",
            covers=("model",),
            secret=self.randomness == "secret",
        )

    def check(self, algorithm: AnyAlgorithm) -> None:
        require_model_alone(self.name, algorithm)

    def types(self, inner: Types) -> Types:
        return replace(inner, private=extended(inner.private, Kept), up=without_figures(inner))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        up, kept = around.inner.local(down, private, client)
        key = private.noise_key if isinstance(private, Kept) else new_key(self.randomness, client.generator)
        model = up.model
        begin = down.model.entries(model.layout).to(model.flat.device)
        noise = gaussian(key, f"update/{client.round}", len(model.flat)).mul_(self.multiplier * self.norm)
        noised = begin + shortened(model.flat - begin, self.norm) + noise.float().to(begin.device)
        up = recast(around.types.up, up, model=type(model)(model.layout, noised))
        return up, recast(around.types.private, kept, noise_key=key)

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        alike = (Reply(reply.client, counted_alike(around, reply.up)) for reply in replies)
        merged = around.inner.merge(state, alike, server)
        return recast(around.types.state, merged, model=with_sane_variances(merged.model, state.model))
