"""Only the largest changes of a client leave it in a round; the others wait for their turn (error feedback).

client: u_i <- y_i - x + e_i            e_i: what it has not sent so far, zero at first
        y_i <- x + top_k(u_i)           of all weights, the share that would move the most
        e_i <- u_i - top_k(u_i)

Statistics of BatchNorm are few and leave whole. Over a network the coding `changed` sends what differs from the model
that came, and nothing else: then a share of 1% takes 2% of the bytes.

Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client, Types
from personae.core.bounds import within
from personae.core.layer import Layer, Layered, described, extended, layers_of, recast
from personae.core.message import Broadcast, LocalState, Message
from personae.core.payload import Gradient, NetworkVector
from personae.layers.clip import Clip


@dataclass(frozen=True, kw_only=True)
class Waiting(LocalState):
    """What a client keeps besides."""

    unsent: Tensor  # e_i


@dataclass(frozen=True, kw_only=True)
class TopK(Layer):
    """A client sends the weights that moved the most, and keeps what it did not send for the next rounds.

    Class embeddings and other fields leave as they are. A client that takes no part in a round keeps what waits.
    """

    name: ClassVar[str] = "top-k"

    share: Annotated[float, within("(0, 1]")] = 0.01  # of the weights of the model, those that leave in a round

    def check(self, algorithm: AnyAlgorithm) -> None:
        kind = algorithm.types.up.kinds().get("model")
        if kind is None or not issubclass(kind, NetworkVector) or issubclass(kind, Gradient):
            raise ValueError(f"clients of {described(algorithm)} send no model, of which a part could wait")
        for layer in layers_of(algorithm):
            if isinstance(layer, Clip) or layer.mechanism:
                raise ValueError(f"what waits would come on top of what {layer.name} bounds: name top-k before it")

    def types(self, inner: Types) -> Types:
        return replace(inner, private=extended(inner.private, Waiting))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        up, kept = around.inner.local(down, private, client)
        model: NetworkVector = up.model
        begin = down.model.entries(model.layout).to(model.flat.device)
        weights = model.layout.trainable_size
        change = model.flat[:weights] - begin[:weights]
        if isinstance(private, Waiting):
            change = change + private.unsent.to(change.device)
        largest = change.abs().topk(max(1, round(self.share * weights))).indices
        sent = model.flat.clone()
        sent[:weights] = begin[:weights]
        sent[largest] += change[largest]
        unsent = change.index_fill(0, largest, 0.0)
        return (
            recast(around.types.up, up, model=type(model)(model.layout, sent)),
            recast(around.types.private, kept, unsent=unsent.cpu()),
        )
