"""Differential privacy for each client or person, with a server that is trusted: bounded updates, noise on their sum.

client: y_i <- x + min(1, C / ||y_i - x||) (y_i - x), of the entries that it sends; no losses and no counts
server: x <- x + 1/m (sum_i (y_i - x) + z C xi), xi Gaussian (McMahan, Ramage, Talwar and Zhang)

m is how many clients are expected, whoever answers, and all weigh the same: then one client changes the sum by no more
than C. With a `quantile` the bound follows the lengths of updates (Andrew, Thakkar, McMahan and Ramaswamy):

client: b_i = whether its update was within C
server: C <- C exp(-rate (1/m (sum_i (b_i - 1/2) + s xi) + 1/2 - quantile)), with s = m / 20
        z in the sum of updates is (z^-2 - (2 s)^-2)^(-1/2), so that both together cost what z alone does

With `people` the bound is on what each person of a client contributes (layers/people.py), and the noise is as strong as
it takes to hide a person. The server cannot see whether a client keeps to such a bound.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

import torch
from torch import Tensor

from personae.core.aggregation import Aggregation, Vectors, Workbench
from personae.core.algorithm import Aggregates, AnyAlgorithm, Client, ClientInfo, Reply, Server, Types
from personae.core.bounds import PositiveFloat, within
from personae.core.layer import Layer, Layered, extended, recast
from personae.core.layout import Layout
from personae.core.mechanism import Mechanism
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import Arrays, Expectation, Payload, Scalar, Scalars
from personae.errors import ConfigError
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

BOUND = "bound"


@dataclass(frozen=True)
class Within(Payload):
    """Whether an update was within the bound before it was shortened."""

    meaning = "whether the client's update was within the bound before it was shortened"
    short = "a bit"
    is_figure = True

    value: bool

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {}, {"value": self.value}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:  # noqa: ARG003
        if arrays or set(scalars) != {"value"} or not isinstance(scalars["value"], bool):
            raise ValueError("Within holds something else than true or false")
        return cls(scalars["value"])

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:  # noqa: ARG003
        return 8


@dataclass(frozen=True, kw_only=True)
class Known(ServerState):
    """What the server knows besides."""

    noise_key: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))
    bound: float = 0.0  # C


@dataclass(frozen=True, kw_only=True)
class Noise(Layer):
    """Every client is hidden in a noised sum of updates no longer than `norm`. The server is trusted with them.

    What is hidden is whether a client took part at all, from whoever gets the models of the rounds. With `people` it is
    whether a person was among those of a client: each is trained for itself, and `norm` bounds what each adds.

    The statistics of BatchNorm are part of an update, unless a layer `carry` keeps them with the client. Clients send
    neither losses nor counts of samples, and all weigh the same. The figures of evaluations are not covered.
    """

    name: ClassVar[str] = "noise"
    judges_alone: ClassVar[bool] = True

    norm: PositiveFloat  # C: the longest update that leaves a client; with a quantile, the first such bound
    multiplier: PositiveFloat  # z: the standard deviation of the noise on the sum of updates, over the bound
    # if given, the bound follows the length that this share of updates keeps to
    quantile: Annotated[float, within("(0, 1)")] | None = None
    rate: PositiveFloat = 0.2  # how fast it does
    people: People | None = None  # if given, each person of a client is hidden, such as { expected = 4 }
    randomness: Randomness = "secret"  # seed: somebody who knows the seed can compute the noise and subtract it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.people is not None and self.quantile is not None:
            raise ValueError("a bound on people cannot follow a quantile: a client's bit speaks of all its people")

    @property
    def needs_public(self) -> bool:
        return self.people is not None

    @property
    def mechanism(self) -> Mechanism:
        covers = ("model",) if self.quantile is None else ("model", "within")
        return Mechanism(
            multiplier=self.multiplier,
            unit="person" if self.people else "client",
            against="readers",
            covers=covers,
            secret=self.randomness == "secret",
            share=self.people.share if self.people else 1.0,
        )

    def check(self, algorithm: AnyAlgorithm) -> None:
        require_model_alone(self.name, algorithm)
        if self.people:
            self.people.check(self.name, algorithm)

    def types(self, inner: Types) -> Types:
        adaptive = self.quantile is not None
        return replace(
            inner,
            state=extended(inner.state, Known),
            private=Keyed if self.people else inner.private,
            down=extended(inner.down, **({BOUND: Scalars} if adaptive else {})),
            up=extended(without_figures(inner), **({"within": Within} if adaptive else {})),
        )

    def aggregates(self, inner: Aggregates) -> Aggregates:  # noqa: ARG002 - of other rules nobody knows what they cost
        return "mean"

    def start(self, around: Layered, previous: ServerState | None, server: Server) -> ServerState:
        self._multiplier(server.cohort)  # if there is none, that is said before anything is trained
        key = new_key(self.randomness, server.generator)
        begun = around.inner.start(previous, server)
        return recast(around.types.state, begun, noise_key=key, bound=self.norm)

    def send(self, around: Layered, state: ServerState, client: ClientInfo) -> Broadcast:
        assert isinstance(state, Known)
        more = {} if self.quantile is None else {BOUND: Scalars({BOUND: state.bound})}
        return recast(around.types.down, around.inner.send(state, client), **more)

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        if self.people:
            key = private.noise_key if isinstance(private, Keyed) else new_key(self.randomness, client.generator)
            sent = self.people.model(around, down, client, key, self.norm)
            return model_alone(around, sent), Keyed(noise_key=key)
        up, kept = around.inner.local(down, private, client)
        model = up.model
        begin = down.model.entries(model.layout).to(model.flat.device)
        way, bound = model.flat - begin, self.norm
        more: dict[str, Payload] = {}
        if self.quantile is not None:
            bound = getattr(down, BOUND).values[BOUND]
            more["within"] = Within(float(way.double().norm()) <= bound)
        more["model"] = type(model)(model.layout, begin + shortened(way, bound))
        return recast(around.types.up, up, **more), kept

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        assert isinstance(state, Known)
        kind = around.inner.types.up.kinds()["model"]
        layout = state.model.layout
        noised = NoisedSum(
            bound=math.inf if self.people else state.bound,
            deviation=self._multiplier(server.cohort) * state.bound / (self.people.expected if self.people else 1),
            cohort=server.cohort,
            key=state.noise_key,
            round=server.round,
            where=_places(layout, kind.part(layout)),  # type: ignore[attr-defined]  # a NetworkVector
        )
        bits: list[float] = []

        def plain() -> Iterator[Reply[Message]]:
            for reply in replies:
                if self.quantile is not None:
                    bits.append(float(reply.up.within.value))  # type: ignore[attr-defined]
                yield Reply(reply.client, counted_alike(around, reply.up))

        merged = around.inner.merge(state, plain(), replace(server, aggregation=noised))
        if noised.calls != [server.round]:
            raise TypeError(f"{around.name} does not take the mean of its models exactly once in a round")
        bound = state.bound if self.quantile is None else self._followed(state, bits, server)
        model = with_sane_variances(merged.model, state.model)
        return recast(around.types.state, merged, model=model, noise_key=state.noise_key, bound=bound)

    def _multiplier(self, cohort: int) -> float:
        """Of the noise on the sum of updates: the bits cost a part of the whole."""
        if self.quantile is None:
            return self.multiplier
        rest = self.multiplier**-2 - (2 * _of_bits(cohort)) ** -2
        if rest <= 0:
            raise ConfigError(
                f"layer noise: a bound that follows a quantile takes a multiplier below {2 * _of_bits(cohort):g} "
                f"with {cohort} clients in a round, and it is {self.multiplier:g}; ask more clients, or fix the bound"
            )
        return float(rest**-0.5)

    def _followed(self, state: Known, bits: list[float], server: Server) -> float:
        assert self.quantile is not None
        noise = _of_bits(server.cohort) * float(gaussian(state.noise_key, f"bits/{server.round}", 1))
        share = (sum(bit - 0.5 for bit in bits) + noise) / server.cohort + 0.5
        return state.bound * math.exp(-self.rate * (share - self.quantile))


def _of_bits(cohort: int) -> float:
    """s: the standard deviation of the noise on the number of updates within the bound."""
    return cohort / 20


def _places(layout: Layout, part: Layout) -> Tensor:
    """1 where an entry is sent, 0 where it is not."""
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return layout.flatten({name: torch.full(shape, float(name in part.names)) for name, shape in shapes.items()})


@dataclass(frozen=True, kw_only=True)
class NoisedSum(Aggregation):
    """x + 1/m (the sum of the ways to the vectors, each no longer than the bound, and noise), whatever the weights."""

    name: ClassVar[str] = "noised sum"

    bound: float
    deviation: float  # of the noise on the sum
    cohort: int  # m
    key: Tensor
    round: int
    where: Tensor  # 1 for entries that clients send
    calls: list[int] = field(default_factory=list)

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:  # noqa: ARG002
        self.calls.append(self.round)
        total = torch.zeros_like(around)
        for vector, _ in vectors:
            total += shortened(vector.to(around.device) - around, self.bound)
        noise = gaussian(self.key, f"sum/{self.round}", len(around)).mul_(self.deviation).float().to(around.device)
        return around + (total + self.where.to(around.device) * noise) / max(1, self.cohort)
