"""What clients carry from round to round, with any algorithm: momentum, a control variate, BatchNorm of their own.

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
from dataclasses import dataclass, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from personae.core.algorithm import (
    Aggregates,
    Algorithm,
    AnyAlgorithm,
    Carried,
    Client,
    ClientInfo,
    Reply,
    Server,
    Types,
)
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, embed
from personae.core.layout import Layout
from personae.core.message import Broadcast, LocalState, Message, Record, ServerState
from personae.core.payload import Gradient, ModelState, ModelWithoutBatchNorm, ModelWithoutStatistics, NetworkVector
from personae.core.samples import Samples
from personae.core.signs import Figures
from personae.errors import ConfigError
from personae.parts.embedding import BackboneEmbedder
from personae.parts.local_sgd import LocalSGD

RecordT = TypeVar("RecordT", bound=Record)
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
class Carry:
    """What clients carry from round to round.

    `momentum`: that of the local steps stays with the client, or goes to the server, which returns the mean, weighted
    like the models; class embeddings and whatever else stays with a client have theirs there in both cases.
    `control_variates`: whether clients correct their drift as in SCAFFOLD. `batch_norm`: whether a client has
    statistics, or all entries, of BatchNorm to itself. They are not sent, and the global model has those that the stage
    began with. With `batch_norm_sent` they are, and nobody who has its own uses the averages: these are for newcomers
    and for the server's benchmarks.
    """

    momentum: Literal["none", "client", "server"] = "none"
    control_variates: bool = False
    batch_norm: Literal["shared", "statistics", "all"] = "shared"
    batch_norm_sent: bool = False
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.batch_norm_sent and self.batch_norm == "shared":
            raise ValueError('batch_norm_sent goes with batch_norm = "statistics" or "all"; what is shared is sent')

    def around(self, algorithm: AnyAlgorithm) -> AnyAlgorithm:
        """The algorithm with it; the algorithm itself, if nothing is carried."""
        return algorithm if self == Carry() else Carrying(algorithm=algorithm, carry=self)

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

    def own(self, layout: Layout) -> frozenset[str]:
        """The entries that a client has to itself."""
        return {"shared": frozenset[str](), "statistics": layout.statistics, "all": layout.batch_norm}[self.batch_norm]


@dataclass(frozen=True, kw_only=True)
class Carrying(Algorithm[ServerState, Broadcast, LocalState, Message]):
    """An algorithm whose clients carry something from round to round. What leaves is in its types, as ever."""

    algorithm: AnyAlgorithm
    carry: Carry

    def __post_init__(self) -> None:
        name, carry = self.name, self.carry
        training: Any = getattr(self.algorithm, "training", None)
        if not self.algorithm.federated:
            raise ValueError(f"clients carry something in federated stages; {name} is none")
        if (carry.momentum != "none" or carry.control_variates) and not isinstance(training, LocalSGD):
            raise ValueError(f"{name} has no local SGD, and so neither momentum nor control variates to carry")
        if carry.momentum != "none" and not training.momentum:
            raise ValueError("there is no momentum to carry: training.momentum is 0")
        if (carry.crosses or carry.batch_norm != "shared") and "model" not in self.algorithm.types.up.hints():
            raise ValueError(f"clients of {name} send no model: they can carry their own momentum, and nothing else")

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.algorithm.name

    @property
    def aggregates(self) -> Aggregates:  # type: ignore[override]
        """What is carried through the server is a mean, too, and a rule that distrusts updates would have to do it."""
        return "mean" if self.carry.crosses else self.algorithm.aggregates

    @property
    def types(self) -> Types:  # type: ignore[override]
        return _types(self.algorithm.types, self.carry)

    @property
    def withheld(self) -> frozenset[str]:
        return self.algorithm.withheld

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return self.algorithm.needs_labels_of

    @property
    def needs_public(self) -> bool:
        return self.algorithm.needs_public

    @property
    def personalizes(self) -> bool:
        return self.carry.batch_norm != "shared" or self.algorithm.personalizes

    def start(self, previous: ServerState | None, server: Server) -> ServerState:
        if self.carry.batch_norm != "shared" and not server.backbone.layout.statistics:
            raise ConfigError(f"{self.name}: clients keep their own BatchNorm, and this network has none")
        return _as(self.types.state, self.algorithm.start(previous, server))

    def send(self, state: ServerState, client: ClientInfo) -> Broadcast:
        besides = {field: getattr(state, field) for field in self.carry.crosses}
        return _as(self.types.down, self.algorithm.send(state, client), **besides)

    def local(self, down: Broadcast, private: LocalState | None, client: Client) -> tuple[Message, LocalState]:
        carried = self._carried(down, private, client.backbone)
        up, kept = self.algorithm.local(*self._own(down, private, replace(client, carried=carried)))
        layout, more = client.backbone.layout, dict[str, Any]()
        directions, norms = dict[str, Tensor](), dict[str, Tensor]()
        if self.carry.control_variates:
            assert carried.mean_gradient is not None
            directions[VARIATE] = carried.mean_gradient
            change = carried.mean_gradient - self._variate(private, client.backbone)
            more["control_variate"] = Gradient(Gradient.part(layout), change)
        if self.carry.momentum != "none":
            assert carried.velocity is not None
            assert carried.head_momentum is not None
            directions[HEAD] = carried.head_momentum
            if self.carry.momentum == "client":
                directions[VELOCITY] = carried.velocity
            else:
                more["momentum"] = Gradient(Gradient.part(layout), carried.velocity.clone())
        if self.carry.batch_norm != "shared":
            views = layout.views(up.model.flat)
            norms = {name: views[name].clone() for name in sorted(self.carry.own(layout))}
            part = self.carry.sent.part(layout)
            more["model"] = self.carry.sent(part, up.model.entries(part))
        return _as(self.types.up, up, **more), _as(self.types.private, kept, directions=directions, batch_norm=norms)

    def merge(self, state: ServerState, replies: Iterable[Reply[Message]], server: Server) -> ServerState:
        assert isinstance(state, Known)
        variates, momenta = Sum(), Sum()

        def completed() -> Iterator[Reply[Any]]:
            for reply in replies:
                up: Any = reply.up
                if self.carry.control_variates:
                    variates.add(up.control_variate)
                if self.carry.momentum == "server":
                    by_samples = getattr(self.algorithm, "weighting", "uniform") == "samples"
                    momenta.add(up.momentum, up.samples.value if by_samples else 1)
                model = up.model
                if self.carry.sent is not ModelState:
                    model = state.model.with_entries(model.layout, model.flat)
                yield Reply(reply.client, _as(self.algorithm.types.up, up, model=model))

        merged = self.algorithm.merge(state, completed(), server)
        variate = state.control_variate
        if self.carry.control_variates:
            variate = variates.over(len(server.clients), onto=variate)
        momentum = momenta.over(momenta.weight) if self.carry.momentum == "server" else None
        return _as(self.types.state, merged, control_variate=variate, momentum=momentum)

    def forget(self, state: ServerState, client: str) -> ServerState:
        after: ServerState = self.algorithm.forget(state, client)
        return after

    def personal(self, down: Broadcast, private: LocalState | None, client: Client) -> Embedder:
        return self.algorithm.personal(*self._own(down, private, client))

    def signs(self, figures: Figures) -> Iterator[str]:
        return self.algorithm.signs(figures)

    def _own(
        self, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Broadcast, LocalState | None, Client]:
        """What the algorithm is given: the model has the client's own BatchNorm, where it has any."""
        if self.carry.batch_norm == "shared":
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
        received: dict[str, Gradient | None] = {field: getattr(down, field) for field in self.carry.crosses}
        if self.carry.momentum != "none":
            carried.velocity, carried.head_momentum = kept.get(VELOCITY), kept.get(HEAD)
            if momentum := received.get("momentum"):
                carried.velocity = momentum.flat
        if self.carry.control_variates:
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


@cache
def _types(types: Types, carry: Carry) -> Types:
    part = {} if carry.sent is ModelState else {"model": carry.sent}
    return Types(
        _more(types.state, Known),
        _more(types.down, **dict.fromkeys(carry.crosses, Gradient | None)),
        _more(types.private, Kept),
        _more(types.up, **dict.fromkeys(carry.crosses, Gradient), **part),
    )


def _more(kind: type[RecordT], *mixins: type[Record], **fields: Any) -> type[RecordT]:
    """The record with more fields; itself, if there are none."""
    if not mixins and not fields:
        return kind
    new = {name for mixin in mixins for name in mixin.hints()} | fields.keys()
    if shared := new & kind.hints().keys() - {*ServerState.hints()}:
        raise TypeError(f"{kind.__qualname__} has a field {shared.pop()} of its own")
    return make_dataclass(f"Carrying{kind.__name__}", fields.items(), bases=(kind, *mixins), frozen=True, kw_only=True)


def _as(kind: type[RecordT], record: Record, **more: Any) -> RecordT:
    """The record as one of another kind, with what the other has besides."""
    same = {name: getattr(record, name) for name in record.hints() if name in kind.hints()}
    return kind(**{**same, **more})
