"""An algorithm: hyper-parameters, four types and six hooks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from personae.core.aggregation import Aggregation, Mean, Vectors, Workbench
from personae.core.backbone import Backbone
from personae.core.bounds import Bounded
from personae.core.embedder import Embedder
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import ModelState
from personae.core.samples import Samples
from personae.core.warnings import Figures, rising_loss

StateT = TypeVar("StateT", bound=ServerState)
DownT = TypeVar("DownT", bound=Broadcast)
PrivateT = TypeVar("PrivateT", bound=LocalState)
UpT = TypeVar("UpT", bound=Message)
KeptT = TypeVar("KeptT", bound=LocalState)

Aggregates = Literal["vectors", "mean", "nothing"]


class Recall(Protocol):
    """Gives what the client kept from the latest earlier stage that keeps this type, or None."""

    def __call__(self, kind: type[KeptT]) -> KeptT | None: ...


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows about a client before it says anything."""

    name: str
    index: int
    source: bool = False  # where there are domains: whether it is the one client with labelled faces of the source


class PublicFaces(Protocol):
    """Faces that every party has."""

    @property
    def samples(self) -> Samples: ...

    def features(self, model: ModelState) -> Tensor:
        """float32 [N, D], of length one, on the CPU and not to be written to: what the model makes of each sample.

        They are computed with the client's backbone, which may hold that model afterwards.
        """


@dataclass
class Carried:
    """What a client's training begins with besides a model, and then what it ended with. Nothing, unless put there.

    `parts/local_sgd.py` reads and writes it; `layers/carry.py` brings it from one round to the next.
    """

    velocity: Tensor | None = None  # the momentum of the backbone's weights
    head_momentum: Tensor | None = None  # and of whatever else is trained, as one vector
    correction: Tensor | None = None  # what is added to the gradient of the backbone's weights at every step
    mean_gradient: Tensor | None = None  # the mean of that gradient over the steps, without it


@dataclass
class Session:
    """What a client keeps from one question of a round to the next, of type `Types.session`. It ends with the round."""

    kept: LocalState | None = None


@dataclass(frozen=True)
class Client:
    """A client in one round: its faces, a backbone to work with, and its own random numbers."""

    info: ClientInfo
    train: Samples
    val: Samples
    test: Samples
    backbone: Backbone
    generator: torch.Generator
    round: int  # counted from 1
    rounds: int
    recall: Recall
    embedder: Callable[[Backbone], Embedder]
    public_faces: PublicFaces | None = None
    carried: Carried = field(default_factory=Carried)
    session: Session = field(default_factory=Session)


class Domains(NamedTuple):
    """Faces of a domain adaptation in one place."""

    source: Samples
    targets: Samples


@dataclass(frozen=True)
class Server:
    """The server in one round: what it may use besides its state."""

    initial: ModelState  # freshly initialised, or the weights that the experiment starts from
    backbone: Backbone
    public_faces: Samples | None  # faces that the server may have
    pooled: Samples | None  # the training faces of the stage's clients; only for an algorithm that says `pools_faces`
    generator: torch.Generator
    round: int  # counted from 1; 0 in `start`
    rounds: int
    clients: tuple[ClientInfo, ...] = ()  # who may be asked in this stage
    domains: "Domains | None" = None  # `pooled` of the source and of the targets apart, where there is a source
    cohort: int = 0  # how many of them are asked in this round, or are expected to be where that is left to chance
    aggregation: Aggregation = field(default_factory=Mean)  # how vectors become one in this stage
    bench: Workbench = field(default_factory=Workbench)

    def aggregate(self, vectors: Vectors, around: Tensor) -> Tensor:
        """One vector out of those of the clients, by the stage's rule; `around` is what they started from."""
        return self.aggregation.combine(vectors, around, self.bench)

    def aggregate_models(self, models: Vectors, around: ModelState) -> ModelState:
        """The same of models as flat vectors."""
        return ModelState(around.layout, self.aggregate(models, around.flat))


@dataclass(frozen=True)
class Reply(Generic[UpT]):
    """An accepted update and whose it is."""

    client: ClientInfo
    up: UpT


@dataclass(frozen=True)
class Question:
    """Something that clients are asked in a round besides their work, and what they answer to it."""

    name: str
    down: type[Message]
    up: type[Message]


@dataclass(frozen=True)
class Types:
    """The four types that an algorithm declares, and what its rounds consist of besides the clients' work."""

    state: type[ServerState]
    down: type[Broadcast]
    private: type[LocalState]
    up: type[Message]
    before: tuple[Question, ...] = ()  # what clients are asked in a round before their work
    after: tuple[Question, ...] = ()  # and after it, before the server merges
    session: type[LocalState] | None = None  # what a client keeps from question to question of one round

    @property
    def questions(self) -> tuple[Question, ...]:
        return (*self.before, *self.after)

    def question(self, name: str) -> Question:
        found = next((question for question in self.questions if question.name == name), None)
        if found is None:
            raise KeyError(f"there is no question {name!r}")
        return found

    @property
    def downs(self) -> tuple[type[Message], ...]:
        """All that a client receives in a round."""
        return (self.down, *(question.down for question in self.questions))

    @property
    def ups(self) -> tuple[type[Message], ...]:
        """All that leaves a client in a round."""
        return (self.up, *(question.up for question in self.questions))


class Algorithm(Bounded, ABC, Generic[StateT, DownT, PrivateT, UpT]):
    """Both halves of a federated method, server and client. Subclasses are frozen, keyword-only dataclasses.

    `Algorithm[State, Down, Private, Up]` names what the server knows, what one client receives, what a client keeps,
    and what leaves it. Objects hold hyper-parameters alone; everything that changes goes in and out of the hooks.
    """

    name: ClassVar[str]
    types: ClassVar[Types]
    federated: ClassVar[bool] = True  # False: the server works alone, no client is asked
    pools_faces: ClassVar[bool] = False  # True: a baseline that needs everybody's faces in one place
    aggregates: ClassVar[Aggregates] = "vectors"  # what `merge` makes of vectors: by any rule, their mean, or nothing
    figures: ClassVar[tuple[str, ...]] = ("loss",)  # what the `Scalars` of an update may be called; `a/*` is a pattern
    secrets: ClassVar[frozenset[str]] = frozenset()  # settings of which files for readers hold a digest alone
    shows_others: ClassVar[bool] = False  # True: a baseline whose clients receive the class embeddings of others
    # Experiment files are validated against these dataclasses; a misspelt hyper-parameter must not pass.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __init_subclass__(cls) -> None:
        declared = next(get_args(base) for base in cls.__orig_bases__ if get_args(base))  # type: ignore[attr-defined]
        if "types" not in vars(cls):
            cls.types = Types(*declared)

    @property
    def withheld(self) -> frozenset[str]:
        """Fields of messages that these hyper-parameters leave empty, though the types would let them across."""
        return frozenset()

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        """Which clients have to know who is on their faces."""
        return "all"

    @property
    def needs_public(self) -> bool:
        """Whether it does nothing without public faces: at the server, and at every client where it is federated."""
        return False

    @property
    def personalizes(self) -> bool:
        """Whether a client uses another model than the global one."""
        return type(self).personal is not Algorithm.personal

    @abstractmethod
    def start(self, previous: ServerState | None, server: Server) -> StateT:
        """The server's state before the first round, from the stage before (None if this is the first)."""

    @abstractmethod
    def send(self, state: StateT, client: ClientInfo) -> DownT:
        """What this client receives."""

    def local(self, down: DownT, private: PrivateT | None, client: Client) -> tuple[UpT, PrivateT]:  # noqa: ARG002
        """A client's work in one round; `private` is None when it takes part for the first time."""
        raise TypeError(f"{self.name} has no client side")

    @abstractmethod
    def merge(self, state: StateT, replies: Iterable[Reply[UpT]], server: Server) -> StateT:
        """The server's state after the round. Replies come one by one, in the order of the clients, once."""

    def ask(self, question: str, state: StateT, client: ClientInfo, cohort: Sequence[ClientInfo]) -> Message:  # noqa: ARG002
        """What this client receives with a question of `types`; the cohort are those who have answered all before."""
        raise TypeError(f"{self.name} asks no {question}")

    def answer(self, question: str, down: Message, client: Client) -> Message:  # noqa: ARG002
        """What a client says to it."""
        raise TypeError(f"{self.name} answers no {question}")

    def hear(self, question: str, state: StateT, replies: Iterable[Reply[Any]], server: Server) -> StateT:  # noqa: ARG002
        """The server's state after the question, until the end of the round."""
        raise TypeError(f"{self.name} hears no {question}")

    def objection(self, up: UpT) -> str | None:
        """Why this update cannot be merged, besides what its payloads say of themselves: that is its client's fault.

        An algorithm adds what it needs itself.
        """
        sent = [name for name in sorted(self.withheld) if getattr(up, name, None) is not None]
        return f"it sends {sent[0]}, which nobody sends in this run" if sent else None

    def forget(self, state: StateT, client: str) -> StateT:
        """The state as if what this client has sent were not kept in it; what it put into averages stays there."""
        kept: dict[str, Any] = {}
        for name in state.by_client():
            kept[name] = {other: sent for other, sent in getattr(state, name).items() if other != client}
        return replace(state, **kept)

    def personal(self, down: DownT, private: PrivateT | None, client: Client) -> Embedder:  # noqa: ARG002
        """The model that this client uses: the global one, unless the algorithm knows better."""
        client.backbone.load(down.model)
        return client.embedder(client.backbone)

    def warnings(self, figures: Figures) -> Iterator[str]:
        """What is wrong with the figures of a round, a line each; an algorithm adds what it knows of its own."""
        yield from rising_loss(figures)


AnyAlgorithm = Algorithm[Any, Any, Any, Any]
