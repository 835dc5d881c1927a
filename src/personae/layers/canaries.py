"""Canaries: made-up clients whose updates are random directions, so that a run tells how much of one update is left.

server: adds, to the updates of a round, x + C c_k for k = 1 .. K, with c_k a random unit vector over the weights, the
same in every round (Andrew, Kairouz, Oh, Oprea, McMahan and Suriyakumar: One-shot empirical privacy estimation for
federated learning, arXiv 2302.03098)

Unit vectors of many dimensions are nearly at right angles. How far the model went along a canary therefore says how
visible one client is in the end, and a single run says it for all of them. `personae audit` reads it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, ClientInfo, Reply, Server
from personae.core.bounds import above, at_least
from personae.core.layer import Layer, Layered, described, layers_of, recast
from personae.core.message import Message, ServerState
from personae.core.payload import ModelState
from personae.core.rng import generator


@dataclass(frozen=True, kw_only=True)
class Canaries(Layer):
    """The server adds made-up updates of a given length, for an audit. The model suffers: do not use it."""

    name: ClassVar[str] = "canaries"

    count: Annotated[int, at_least(2)] = 32  # of made-up clients; each takes part in every round
    # how long each of their updates is: the bound of clients, where these have one
    norm: Annotated[float, above(0)] = 1.0
    seed: int = 0  # of the directions

    def check(self, algorithm: AnyAlgorithm) -> None:
        if any(layer.hides_single_updates for layer in layers_of(algorithm)):
            raise ValueError("canaries cannot be added to a secret sum by the server")
        kinds = algorithm.types.up.kinds()
        if kinds.get("model") is not ModelState:
            raise ValueError(
                f"canaries go around algorithms whose clients send whole models; {described(algorithm)} does not"
            )
        if any(kind.is_template for name, kind in kinds.items() if name not in algorithm.withheld):
            raise ValueError(f"{described(algorithm)} keeps vectors of people by client, and a canary has none")

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        return super().merge(around, state, self._with_canaries(state.model, replies), server)

    def _with_canaries(self, model: ModelState, replies: Iterable[Reply[Message]]) -> Iterator[Reply[Message]]:
        last: Reply[Message] | None = None
        for last in replies:
            yield last
        if last is None:
            return
        for number in range(self.count):
            flat = model.flat.clone()
            flat[: model.layout.trainable_size] += self.norm * self.direction(number, model).to(flat.device)
            up = recast(type(last.up), last.up, model=ModelState(model.layout, flat))
            yield Reply(ClientInfo(f"canary-{number}", last.client.index + 1 + number), up)

    def direction(self, number: int, model: ModelState) -> Tensor:
        """A unit vector over the weights."""
        random = generator(self.seed, "canary", number)
        drawn = torch.randn(model.layout.trainable_size, generator=random)
        return F.normalize(drawn, dim=0)
