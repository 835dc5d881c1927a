"""Updates no longer than a bound, shortened at the client before they leave.

client: y_i <- x + min(1, C / ||y_i - x||) (y_i - x), of the entries that it sends
        g_i <- min(1, C / ||g_i||) g_i, of every gradient that it sends

The server sees nothing longer from a client that keeps to this, which bounds what one client can do to the mean. Noise
that hides a client needs such a bound. A client that does not keep to it is not stopped here: for that the server has
its firewall and `clip` before a rule.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client
from personae.core.bounds import above
from personae.core.layer import Layer, Layered, described
from personae.core.message import Broadcast, LocalState, Message
from personae.core.payload import Gradient, NetworkVector, Payload, Scalars

FIGURE = "clipped"


@dataclass(frozen=True, kw_only=True)
class Clip(Layer):
    """Updates are shortened at the client, to at most `norm`.

    The update is the way from the received model to the one that is sent; gradients that leave are shortened likewise.
    Lengths are of all entries that leave, statistics of BatchNorm among them. Class embeddings and public embeddings
    are no updates and leave as they are. Where an algorithm sends figures, there is one more: `clipped`, 1 from a
    client that shortened something and 0 from others, so that its mean is the share of such clients.
    """

    name: ClassVar[str] = "clip"
    figures: ClassVar[tuple[str, ...]] = (FIGURE,)

    norm: Annotated[float, above(0)]  # the longest update that leaves a client

    def check(self, algorithm: AnyAlgorithm) -> None:
        if not any(issubclass(kind, NetworkVector) for kind in algorithm.types.up.kinds().values()):
            raise ValueError(f"clients of {described(algorithm)} send neither a model nor a gradient: nothing to clip")

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        up, kept = around.inner.local(down, private, client)
        sent = {name: getattr(up, name) for name in up.hints()}
        shorter: dict[str, Payload] = {}
        for name, vector in sent.items():
            if isinstance(vector, NetworkVector):
                begin = None if isinstance(vector, Gradient) else down.model.entries(vector.layout)
                if (flat := self._shortened(vector.flat, begin)) is not None:
                    shorter[name] = type(vector)(vector.layout, flat)
        figures = next((name for name, payload in sent.items() if isinstance(payload, Scalars)), None)
        if figures is not None:
            shorter[figures] = Scalars({**sent[figures].values, FIGURE: float(bool(shorter))})
        return replace(up, **shorter), kept

    def _shortened(self, vector: Tensor, begin: Tensor | None) -> Tensor | None:
        """The vector drawn back to where it begins, by default zero. None for one that is short enough, or that has no
        finite length and is for the firewall to refuse."""
        begin = torch.zeros_like(vector) if begin is None else begin.to(vector.device)
        length = float((vector - begin).norm())
        return begin.lerp(vector, self.norm / length) if self.norm < length < math.inf else None
