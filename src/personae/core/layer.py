"""Layers go around any algorithm and change its messages by declared fields.

A stage names its layers in order. The first is the innermost, next to the algorithm; the last is the outermost, which
has the last word on what leaves a client and the first look at what arrives at the server. An algorithm with a layer
around it is an algorithm: its four types are those of the other with more fields, or with fields of other payload
kinds. Firewall, ledger, disclosure, dry run and report read the types, so no runtime knows of any layer.

A layer is a frozen, keyword-only dataclass of its settings. `types` declares what it changes. Its hooks are those of an
algorithm, each with `around` before its arguments: `around.inner` is the algorithm inside, to be called or not,
`around.types` are the types with the layer. A hook that is not written hands everything on. Both sides can be reached,
before and after what the algorithm does there:

    send    server  before: what the algorithm inside is told of the state;  after: fields for one client
    local   client  before: what the algorithm inside receives;              after: what leaves, and what is kept
    merge   server  before: the replies as they come, one by one;            after: the state of the next round

A round is one question and one answer, unless `types` declares further questions before or after the clients' work
(`Types.before`, `Types.after`). These have three hooks: `ask` (server: what one client receives), `answer` (client) and
`hear` (server: what the state knows from then on, until `merge`). What a client keeps from question to question is its
`session`, which ends with the round. A client that does not answer a question before the work takes no further part
in the round.

Each of these fits in one file:

- Noise at the client: `local` calls the algorithm inside and adds noise to the update, which a layer `clip` inside has
  bounded. It declares no field.
- Noise at the server: `merge` calls the algorithm inside and adds noise to the model of the state. An accountant finds
  the layers, with their settings, in `Stage.layers`, and the policy by which clients are chosen beside them.
- A secret sum (`layers/secret_sum.py`): `hides_single_updates` is True, and `types` puts a masked kind in the place of
  every field. Keys and shares of secrets travel in questions before the work. `local` multiplies vectors by the
  client's weight and masks them. A question after the work asks for the shares that open the sum. `merge` adds up the
  masked replies and hands the algorithm inside one reply, their mean.

What cannot go together is refused when a stage is made. The class `Layered` and `Stage` know the general reasons; a
layer gives its own in `check`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

from personae.core.algorithm import Aggregates, Algorithm, AnyAlgorithm, Client, ClientInfo, Reply, Server, Types
from personae.core.bounds import Bounded
from personae.core.embedder import Embedder
from personae.core.mechanism import Mechanism
from personae.core.message import Broadcast, LocalState, Message, Record, ServerState
from personae.core.payload import Aliases
from personae.core.warnings import Figures

RecordT = TypeVar("RecordT", bound=Record)


class Layer(Bounded):
    """What goes around an algorithm: a frozen dataclass of its settings."""

    name: ClassVar[str]
    figures: ClassVar[tuple[str, ...]] = ()  # names of those that it adds to what clients send
    least: int = 1  # how many clients a round must ask
    hides_single_updates: ClassVar[bool] = False  # True: the server can read what clients send only as a sum
    judges_alone: ClassVar[bool] = False  # True: whether an update counts may not depend on those of other clients
    noisy: ClassVar[bool] = False  # True: clients add noise, so that what they send may be no possible model
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def around(self, algorithm: AnyAlgorithm) -> "Layered":
        """The algorithm with this layer around it."""
        return Layered(inner=algorithm, layer=self)

    def check(self, algorithm: AnyAlgorithm) -> None:
        """Raises ValueError with the reason, if it cannot go around this algorithm."""

    def types(self, inner: Types) -> Types:
        """The types of the algorithm inside with what the layer changes: see `extended` and `exchanged`."""
        return inner

    def aggregates(self, inner: Aggregates) -> Aggregates:
        """What `merge` makes of vectors, given what the algorithm inside does."""
        return inner

    @property
    def personalizes(self) -> bool:
        """Whether a client uses another model than the global one because of the layer."""
        return False

    @property
    def needs_public(self) -> bool:
        """Whether clients cannot do without public faces because of the layer."""
        return False

    @property
    def mechanism(self) -> Mechanism | None:
        """The noise by which it hides a client in every round, where it does: an accountant asks for it."""
        return None

    def start(self, around: "Layered", previous: ServerState | None, server: Server) -> ServerState:
        return recast(around.types.state, around.inner.start(previous, server))

    def send(self, around: "Layered", state: ServerState, client: ClientInfo) -> Broadcast:
        return recast(around.types.down, around.inner.send(state, client))

    def local(
        self, around: "Layered", down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        up, kept = around.inner.local(down, private, client)
        return recast(around.types.up, up), recast(around.types.private, kept)

    def merge(
        self, around: "Layered", state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        return recast(around.types.state, around.inner.merge(state, replies, server), **around.own(state))

    def ask(
        self, around: "Layered", question: str, state: ServerState, client: ClientInfo, cohort: Sequence[ClientInfo]
    ) -> Message:
        return around.inner.ask(question, state, client, cohort)

    def answer(self, around: "Layered", question: str, down: Message, client: Client) -> Message:
        return around.inner.answer(question, down, client)

    def hear(
        self, around: "Layered", question: str, state: ServerState, replies: Iterable[Reply[Any]], server: Server
    ) -> ServerState:
        return recast(around.types.state, around.inner.hear(question, state, replies, server), **around.own(state))

    def forget(self, around: "Layered", state: ServerState, client: str) -> ServerState:
        """Of the layer's own fields, those by client lose the client's entry, as in any state."""
        mine = Algorithm.forget(around, state, client)
        return recast(around.types.state, around.inner.forget(state, client), **around.own(mine))

    def personal(self, around: "Layered", down: Broadcast, private: LocalState | None, client: Client) -> Embedder:
        return around.inner.personal(down, private, client)


@dataclass(frozen=True, kw_only=True)
class Layered(Algorithm[ServerState, Broadcast, LocalState, Message]):
    """An algorithm with one layer around it."""

    inner: AnyAlgorithm
    layer: Layer

    def __post_init__(self) -> None:
        inner, layer = self.inner, self.layer
        if not inner.federated:
            raise ValueError(f"layer {layer.name} goes around federated algorithms; {inner.name} is none")
        if layer.name in (other.name for other in layers_of(inner)):
            raise ValueError(f"layer {layer.name} is there twice")
        if layer.hides_single_updates:
            self._check_hiding()
        layer.check(inner)
        try:
            self.types  # noqa: B018 - fields that clash are found when the types are made
        except (TypeError, ValueError) as error:
            raise ValueError(f"layer {layer.name} around {described(inner)}: {error}") from error

    def _check_hiding(self) -> None:
        inner, refused = self.inner, f"layer {self.layer.name} hides single updates from the server"
        for layer in layers_of(inner):
            if layer.mechanism and layer.mechanism.against == "readers":
                raise ValueError(
                    f"{refused}, and layer {layer.name} works on them there: the server limits their lengths and adds "
                    "noise. Take local-noise instead, with which clients do both"
                )
        if inner.aggregates != "vectors":
            how = {"mean": "weighs them by more than their samples", "nothing": "aggregates nothing"}[inner.aggregates]
            raise ValueError(f"{refused}, and {described(inner)} {how}")
        for field, kind in inner.types.up.kinds().items():
            if (kind.is_template or kind is Aliases) and field not in inner.withheld:
                raise ValueError(
                    f"{refused}, and {described(inner)} keeps {field} ({kind.__name__}) of every client there"
                )

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def types(self) -> Types:  # type: ignore[override]
        return _types(self.layer, self.inner.types)

    @property
    def figures(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.inner.figures, *self.layer.figures)

    @property
    def pools_faces(self) -> bool:  # type: ignore[override]
        return self.inner.pools_faces

    @property
    def shows_others(self) -> bool:  # type: ignore[override]
        return self.inner.shows_others

    @property
    def aggregates(self) -> Aggregates:  # type: ignore[override]
        return self.layer.aggregates(self.inner.aggregates)

    @property
    def withheld(self) -> frozenset[str]:
        return self.inner.withheld

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return self.inner.needs_labels_of

    @property
    def needs_public(self) -> bool:
        return self.layer.needs_public or self.inner.needs_public

    @property
    def personalizes(self) -> bool:
        return self.layer.personalizes or self.inner.personalizes

    def own(self, state: ServerState) -> dict[str, Any]:
        """What a state has for the layer and not for the algorithm inside."""
        names = self.types.state.hints().keys() - self.inner.types.state.hints().keys()
        return {name: getattr(state, name) for name in names}

    def start(self, previous: ServerState | None, server: Server) -> ServerState:
        return self.layer.start(self, previous, server)

    def send(self, state: ServerState, client: ClientInfo) -> Broadcast:
        return self.layer.send(self, state, client)

    def local(self, down: Broadcast, private: LocalState | None, client: Client) -> tuple[Message, LocalState]:
        return self.layer.local(self, down, private, client)

    def merge(self, state: ServerState, replies: Iterable[Reply[Message]], server: Server) -> ServerState:
        return self.layer.merge(self, state, replies, server)

    def ask(self, question: str, state: ServerState, client: ClientInfo, cohort: Sequence[ClientInfo]) -> Message:
        return self.layer.ask(self, question, state, client, cohort)

    def answer(self, question: str, down: Message, client: Client) -> Message:
        return self.layer.answer(self, question, down, client)

    def hear(self, question: str, state: ServerState, replies: Iterable[Reply[Any]], server: Server) -> ServerState:
        return self.layer.hear(self, question, state, replies, server)

    def objection(self, up: Message) -> str | None:
        return self.inner.objection(up)  # it has all fields of the message inside

    def forget(self, state: ServerState, client: str) -> ServerState:
        return self.layer.forget(self, state, client)

    def personal(self, down: Broadcast, private: LocalState | None, client: Client) -> Embedder:
        return self.layer.personal(self, down, private, client)

    def warnings(self, figures: Figures) -> Iterator[str]:
        return self.inner.warnings(figures)


def layered(algorithm: AnyAlgorithm, *layers: Layer) -> AnyAlgorithm:
    """The algorithm with these layers around it, the first next to it."""
    for layer in layers:
        algorithm = layer.around(algorithm)
    return algorithm


def layers_of(algorithm: AnyAlgorithm) -> tuple[Layer, ...]:
    """The layers around an algorithm, the innermost first."""
    return (*layers_of(algorithm.inner), algorithm.layer) if isinstance(algorithm, Layered) else ()


def innermost(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm itself, with its hyper-parameters, inside all layers."""
    return innermost(algorithm.inner) if isinstance(algorithm, Layered) else algorithm


def described(algorithm: AnyAlgorithm) -> str:
    """An algorithm and its layers by name."""
    names = [layer.name for layer in layers_of(algorithm)]
    return f"{algorithm.name} with {' and '.join(names)}" if names else algorithm.name


def extended(kind: type[RecordT], *mixins: type[Record], **fields: Any) -> type[RecordT]:
    """The record with further fields, those of `mixins` and `fields`; itself, if there are none."""
    new = {name for mixin in mixins for name in mixin.hints()} - ServerState.hints().keys() | fields.keys()
    if not mixins and not fields:
        return kind
    if clashing := new & kind.hints().keys():
        raise ValueError(f"{kind.__qualname__} has a field {min(clashing)} already")
    return make_dataclass(f"Layered{kind.__name__}", fields.items(), bases=(kind, *mixins), frozen=True, kw_only=True)


def exchanged(kind: type[RecordT], **fields: Any) -> type[RecordT]:
    """The record with other payload kinds in some of its fields; itself, if these are none."""
    if missing := fields.keys() - kind.hints().keys():
        raise ValueError(f"{kind.__qualname__} has no field {min(missing)}")
    if not fields:
        return kind
    return make_dataclass(f"Layered{kind.__name__}", fields.items(), bases=(kind,), frozen=True, kw_only=True)


def reduced(kind: type[Message], *names: str) -> type[Message]:
    """The message without some of its fields; itself, if these are none."""
    if missing := set(names) - kind.hints().keys():
        raise ValueError(f"{kind.__qualname__} has no field {min(missing)}")
    if not names:
        return kind
    left: list[tuple[str, Any, Any]] = [
        (each.name, kind.hints()[each.name], dataclasses.field(default=each.default))
        for each in fields(kind)  # type: ignore[arg-type]
        if each.name not in names
    ]
    return make_dataclass(f"Layered{kind.__name__}", left, bases=(Message,), frozen=True, kw_only=True)


def recast(kind: type[RecordT], record: Record, **fields: Any) -> RecordT:
    """The record as one of another kind, with values for what the other has besides or otherwise."""
    same = {name: getattr(record, name) for name in record.hints() if name in kind.hints()}
    return kind(**{**same, **fields})


@cache  # a message is of the one type that was declared
def _types(layer: Layer, inner: Types) -> Types:
    return layer.types(inner)
