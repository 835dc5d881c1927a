"""What clients carry from round to round: momentum, a control variate, BatchNorm of their own.

Of an algorithm by which client i goes from x to y_i in K steps against the gradients g of its loss, this makes one with

momentum, of every client or of all (Yu, Jin and Yang)
client: its steps begin with the momentum that it ended with last time, or with the mean of those that everybody sent
control variates (SCAFFOLD; Karimireddy et al., Algorithm 1, option II)
server: send c beside x
client: steps against g - c_i + c
        c_i+ <- c_i - c + (x - y_i) / (K eta); send c_i+ - c_i; keep c_i+
server: c <- c + 1/N sum_i (c_i+ - c_i), with N all clients of the stage
BatchNorm of its own (FedBN; Li et al.; statistics alone: SiloBN; Andreux et al.)
client: put its own entries into x; go to y_i; keep those of y_i, and send all others

Option II is the mean of g over the steps, where steps are plain and the rate is constant. So it is taken here, and then
it means the same with momentum and with schedules. g has what weight decay and a proximal term add to it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from personae.core.algorithm import Aggregates, AnyAlgorithm, Carried, Client, ClientInfo, Reply, Server, Types
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, embed
from personae.core.layer import Layer, Layered, described, exchanged, extended, innermost, recast
from personae.core.layout import Layout
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import Gradient, ModelState, ModelWithoutBatchNorm, ModelWithoutStatistics, NetworkVector
from personae.core.samples import Samples
from personae.errors import ConfigError
from personae.parts.embedding import BackboneEmbedder
from personae.parts.local_sgd import LocalSGD

VARIATE, VELOCITY, HEAD = "control variate", "velocity", "head momentum"  # c_i, momentum of weights, of the rest


@dataclass(frozen=True, kw_only=True)
class Known(ServerState):
    """What the server knows besides."""

    control_variate: Gradient | None = None  # c; None for zero
    momentum: Gradient | None = None  # the mean of the clients'; None for rest


@dataclass(frozen=True, kw_only=True)
class Kept(LocalState):
    """What a client keeps besides; a later stage recalls the BatchNorm."""

    directions: dict[str, Tensor]  # c_i and momenta
    batch_norm: dict[str, Tensor]  # its own entries by name


@dataclass(frozen=True, kw_only=True)
class Carry(Layer):
    """What clients carry from round to round.

    Momentum at the server is the mean of the clients', weighted like their models; class embeddings and whatever else
    stays with a client have theirs there in any case. Where BatchNorm stays with a client, the global model has the
    entries that the stage began with. Where it is sent all the same, nobody who has its own uses the averages.
    """

    name: ClassVar[str] = "carry"

    momentum: Literal["none", "client", "server"] = "none"  # where that of the local steps stays until the next round
    control_variates: bool = False  # whether clients correct their drift as in SCAFFOLD
    batch_norm: Literal["shared", "statistics", "all"] = "shared"  # what of BatchNorm a client has to itself, if any
    batch_norm_sent: bool = False  # whether that is sent all the same, for newcomers and for the server's benchmarks

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_norm_sent and self.batch_norm == "shared":
            raise ValueError('batch_norm_sent goes with batch_norm = "statistics" or "all"; what is shared is sent')

    @property
    def crosses(self) -> tuple[str, ...]:
        """What crosses besides: c and the mean momentum to a client, c_i+ - c_i and its momentum from there."""
        fields = {"control_variate": self.control_variates, "momentum": self.momentum == "server"}
        return tuple(field for field, does in fields.items() if does)

    @property
    def sent(self) -> type[NetworkVector]:
        """What a client sends of its model."""
        if self.batch_norm == "shared" or self.batch_norm_sent:
            return ModelState
        return ModelWithoutStatistics if self.batch_norm == "statistics" else ModelWithoutBatchNorm

    @property
    def personalizes(self) -> bool:
        return self.batch_norm != "shared"

    def check(self, algorithm: AnyAlgorithm) -> None:
        name, training = described(algorithm), getattr(innermost(algorithm), "training", None)
        if self.momentum != "none" or self.control_variates:
            if not isinstance(training, LocalSGD):
                raise ValueError(f"{name} has no local SGD, and so neither momentum nor control variates to carry")
            if self.momentum != "none" and not training.momentum:
                raise ValueError("there is no momentum to carry: training.momentum is 0")
        whole = algorithm.types.up.payloads().get("model") == ModelState.__name__
        if (self.crosses or self.batch_norm != "shared") and not whole:
            raise ValueError(f"clients of {name} send no whole model: they can carry their own momentum alone")

    def types(self, inner: Types) -> Types:
        part = {} if self.sent is ModelState else {"model": self.sent}
        return replace(
            inner,
            state=extended(inner.state, Known),
            down=extended(inner.down, **dict.fromkeys(self.crosses, Gradient | None)),
            private=extended(inner.private, Kept),
            up=exchanged(extended(inner.up, **dict.fromkeys(self.crosses, Gradient)), **part),
        )

    def aggregates(self, inner: Aggregates) -> Aggregates:
        """What is carried through the server is a mean, too, and a rule that distrusts updates would have to do it."""
        return "mean" if self.crosses else inner

    def start(self, around: Layered, previous: ServerState | None, server: Server) -> ServerState:
        if self.batch_norm != "shared" and not server.backbone.layout.statistics:
            raise ConfigError(f"{around.name}: clients keep their own BatchNorm, and this network has none")
        return super().start(around, previous, server)

    def send(self, around: Layered, state: ServerState, client: ClientInfo) -> Broadcast:
        besides = {field: getattr(state, field) for field in self.crosses}
        return recast(around.types.down, around.inner.send(state, client), **besides)

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        carried = self._carried(down, private, client.backbone)
        up, kept = around.inner.local(*self.own(down, private, replace(client, carried=carried)))
        layout, more = client.backbone.layout, dict[str, Any]()
        directions, norms = dict[str, Tensor](), dict[str, Tensor]()
        if self.control_variates:
            assert carried.mean_gradient is not None
            directions[VARIATE] = carried.mean_gradient
            change = carried.mean_gradient - self._variate(private, client.backbone)
            more["control_variate"] = Gradient(Gradient.part(layout), change)
        if self.momentum != "none":
            assert carried.velocity is not None
            assert carried.head_momentum is not None
            directions[HEAD] = carried.head_momentum
            if self.momentum == "client":
                directions[VELOCITY] = carried.velocity
            else:
                more["momentum"] = Gradient(Gradient.part(layout), carried.velocity.clone())
        if self.batch_norm != "shared":
            own = {"statistics": layout.statistics, "all": layout.batch_norm}[self.batch_norm]
            views = layout.views(up.model.flat)
            norms = {name: views[name].clone() for name in sorted(own)}
            part = self.sent.part(layout)
            more["model"] = self.sent(part, up.model.entries(part))
        kept = recast(around.types.private, kept, directions=directions, batch_norm=norms)
        return recast(around.types.up, up, **more), kept

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        assert isinstance(state, Known)
        by_samples = getattr(innermost(around), "weighting", "uniform") == "samples"
        variates, momenta = Sum(), Sum()

        def completed() -> Iterator[Reply[Any]]:
            for reply in replies:
                up: Any = reply.up
                if self.control_variates:
                    variates.add(up.control_variate)
                if self.momentum == "server":
                    momenta.add(up.momentum, up.samples.value if by_samples else 1)
                whole: dict[str, ModelState] = {}
                if self.sent is not ModelState:
                    whole["model"] = state.model.with_entries(up.model.layout, up.model.flat)
                yield Reply(reply.client, recast(around.inner.types.up, up, **whole))

        merged = around.inner.merge(state, completed(), server)
        variate = state.control_variate
        if self.control_variates:
            variate = variates.over(len(server.clients), onto=variate)
        momentum = momenta.over(momenta.weight) if self.momentum == "server" else None
        return recast(around.types.state, merged, control_variate=variate, momentum=momentum)

    def personal(self, around: Layered, down: Broadcast, private: LocalState | None, client: Client) -> Embedder:
        return around.inner.personal(*self.own(down, private, client))

    def own(
        self, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Broadcast, LocalState | None, Client]:
        """What the algorithm is given: the model has the client's own BatchNorm, where it has any."""
        if self.batch_norm == "shared":
            return down, private, client
        kept = private or client.recall(Kept)
        if isinstance(kept, Kept) and kept.batch_norm:
            part = down.model.layout.only(kept.batch_norm)
            down = replace(down, model=down.model.with_entries(part, part.flatten(kept.batch_norm)))
        public = client.public_faces and Alone(client.public_faces.samples, client.backbone)
        return down, private, replace(client, public_faces=public)

    def _carried(self, down: Broadcast, private: LocalState | None, backbone: Backbone) -> Carried:
        """What this round's training begins with."""
        carried, kept = Carried(), private.directions if isinstance(private, Kept) else {}
        received: dict[str, Gradient | None] = {field: getattr(down, field) for field in self.crosses}
        if self.momentum != "none":
            carried.velocity, carried.head_momentum = kept.get(VELOCITY), kept.get(HEAD)
            if momentum := received.get("momentum"):
                carried.velocity = momentum.flat
        if self.control_variates:
            carried.correction = -self._variate(private, backbone)
            if variate := received.get("control_variate"):
                carried.correction += variate.flat.to(backbone.device)
        return carried

    def _variate(self, private: LocalState | None, backbone: Backbone) -> Tensor:
        """c_i: zero for a client that takes part for the first time."""
        if isinstance(private, Kept):
            return private.directions[VARIATE].to(backbone.device)
        return torch.zeros_like(backbone.weights)


class Sum:
    """A weighted sum of gradients that come one by one."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.total: Tensor | None = None
        self.weight = 0.0

    def add(self, gradient: Gradient, weight: float = 1.0) -> None:
        if self.total is None:
            self.layout, self.total = gradient.layout, torch.zeros_like(gradient.flat)
        self.total.add_(gradient.flat.to(self.total.device), alpha=weight)
        self.weight += weight

    def over(self, divisor: float, onto: Gradient | None = None) -> Gradient:
        """Divided, and added to something."""
        assert self.layout is not None
        assert self.total is not None
        share = self.total / divisor
        return Gradient(self.layout, share if onto is None else onto.flat.to(share.device) + share)


@dataclass(frozen=True)
class Alone:
    """Public faces as one client sees them, through a BatchNorm that it shares with nobody."""

    samples: Samples
    backbone: Backbone

    def features(self, model: ModelState) -> Tensor:
        self.backbone.load(model)
        return embed(BackboneEmbedder(self.backbone, mirror=False), self.samples)
