"""Differential privacy for each client or person without trust in the server: clients add noise to their own updates.

client: y_i <- x + min(1, C / ||y_i - x||) (y_i - x) + z C xi_i, of the entries that it sends; xi_i Gaussian
        no losses and no counts
server: as the algorithm has it, all clients alike

The mean of n clients has the noise of one over sqrt(n), where a trusted server would get along with that over n.
Whoever sees means or sums alone, as the server does under `secret-sum`, meets the noise of all: there a smaller z will
do. With `people` the bound is on what each person of a client contributes (layers/people.py), and so is the noise.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client, Reply, Server, Types
from personae.core.bounds import PositiveFloat, PositiveInt
from personae.core.layer import Layer, Layered, extended, recast
from personae.core.mechanism import Mechanism
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import NetworkVector
from personae.layers.bounding import (
    counted_alike,
    model_alone,
    require_model_alone,
    shortened,
    with_sane_variances,
    without_figures,
)
from personae.layers.people import Keyed, People
from personae.parts.secret_noise import Randomness, gaussian, new_key


@dataclass(frozen=True, kw_only=True)
class LocalNoise(Layer):
    """Every client adds noise to its own update, no longer than `norm` before, so that not even the server sees it.

    What is hidden is everything that a client holds: the bound is for any two sets of faces that it might have, and it
    pays for every round in which it may be asked. This takes far more noise than the layer `noise`. With `people` it is
    each person of a client, which takes less where a client has many. Losses, counts and the statistics of BatchNorm
    are handled as in `noise`.
    """

    name: ClassVar[str] = "local-noise"
    noisy: ClassVar[bool] = True

    norm: PositiveFloat  # C: the longest update before noise
    multiplier: PositiveFloat  # z: the standard deviation of the noise of one client, over the bound
    people: People | None = None  # if given, each person of a client is hidden, such as { expected = 4 }
    pooling: PositiveInt = 1  # how many clients may tell others their own noise, which then hides nobody in a sum
    randomness: Randomness = "secret"  # seed: somebody who knows the seed can compute the noise and subtract it

    @property
    def needs_public(self) -> bool:
        return self.people is not None

    @property
    def mechanism(self) -> Mechanism:
        # A person is there or not. A client sends in any case: from one end of its ball to the other it is twice C.
        return Mechanism(
            multiplier=self.multiplier if self.people else self.multiplier / 2,
            unit="person" if self.people else "client",
            against="server",
            covers=("model",),
            secret=self.randomness == "secret",
            share=self.people.share if self.people else 1.0,
            pooling=self.pooling,
        )

    def check(self, algorithm: AnyAlgorithm) -> None:
        require_model_alone(self.name, algorithm)
        if self.people:
            self.people.check(self.name, algorithm)

    def types(self, inner: Types) -> Types:
        private = Keyed if self.people else extended(inner.private, Keyed)
        return replace(inner, private=private, up=without_figures(inner))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        if self.people:
            key = self._key(private, client)
            model = self.people.model(around, down, client, key, self.norm)
            noised = self._noised(model, key, client, self.norm / self.people.expected)
            return model_alone(around, noised), Keyed(noise_key=key)
        up, kept = around.inner.local(down, private, client)
        key, model = self._key(private, client), up.model
        begin = down.model.entries(model.layout).to(model.flat.device)
        bounded = type(model)(model.layout, begin + shortened(model.flat - begin, self.norm))
        up = recast(around.types.up, up, model=self._noised(bounded, key, client, self.norm))
        return up, recast(around.types.private, kept, noise_key=key)

    def _key(self, private: LocalState | None, client: Client) -> Tensor:
        return private.noise_key if isinstance(private, Keyed) else new_key(self.randomness, client.generator)

    def _noised(self, model: NetworkVector, key: Tensor, client: Client, bound: float) -> NetworkVector:
        noise = gaussian(key, f"update/{client.round}", len(model.flat)).mul_(self.multiplier * bound)
        return type(model)(model.layout, model.flat + noise.float().to(model.flat.device))

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        alike = (Reply(reply.client, counted_alike(around, reply.up)) for reply in replies)
        merged = around.inner.merge(state, alike, server)
        return recast(around.types.state, merged, model=with_sane_variances(merged.model, state.model))
