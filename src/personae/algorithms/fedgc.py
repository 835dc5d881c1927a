"""FedGC: FedPE whose server corrects the gradients of the class embeddings (Niu and Deng, Algorithm 1).

server: send theta, and to client k its own W_k
client: theta_k, W_k <- SGD on the margin loss of its own faces, from theta and W_k
        send theta_k, W_k and n_k
server: theta <- sum_k n_k theta_k / sum_k n_k
        W <- W - lambda eta grad Reg(W), over the rows of all clients as last seen
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, at_least
from personae.core.message import Broadcast, Message, ServerState
from personae.core.payload import Aliases, ClassEmbeddings, Count, ModelState, Scalars
from personae.parts.averaging import Weighting, weight_of
from personae.parts.corrections import Reduction, Shared, corrected, cosine_regulariser, drawn, softmax_regulariser
from personae.parts.heads import HeadInit, OwnHead, own_rows
from personae.parts.linking import tokens_of
from personae.parts.local_step import LocalStep


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    class_embeddings: dict[str, ClassEmbeddings]  # W_k of every client seen so far
    aliases: dict[str, Aliases] = field(default_factory=dict)  # and who of them is who, where people may be shared


@dataclass(frozen=True, kw_only=True)
class Down(Broadcast):
    class_embeddings: ClassEmbeddings | None  # the client's own W_k, corrected; None before the server has seen it


@dataclass(frozen=True, kw_only=True)
class Private(OwnHead):
    """W_k as the client last had it, for as long as the server knows none."""


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState  # theta_k
    class_embeddings: ClassEmbeddings | None  # W_k; it stays with the client where there is no regulariser
    aliases: Aliases | None = None  # a token for each row, where people may be shared
    samples: Count  # n_k
    training: Scalars  # the mean loss


@dataclass(frozen=True, kw_only=True)
class FedGC(LocalStep, Algorithm[State, Down, Private, Up]):
    """Federated averaging with class embeddings that the server pushes apart across clients.

    Rows of clients that are absent from a round stay as last seen, and push the others all the same.
    """

    name: ClassVar[str] = "fedgc"
    secrets: ClassVar[frozenset[str]] = frozenset({"link"})

    # Reg: the softmax regulariser (Eq. 5) in the form of margin. cosine is the paper's FedCos, none its FedPE.
    regulariser: Literal["softmax", "cosine", "none"] = "softmax"
    strength: NonNegativeFloat = 20.0  # lambda, how strongly classes are pushed apart
    lr: PositiveFloat | None = None  # eta at the server; if left out, that of training in the round, as in Algorithm 1
    # If given, lambda eta is chosen again for each step, so that it moves rows by this share of their length (root mean
    # square). Gradients of the forms below differ by orders of magnitude: at equal displacement they can be compared.
    displacement: PositiveFloat | None = None
    steps: PositiveInt = 1  # how often the server steps in a round; Algorithm 1 takes one step
    reduction: Reduction = "sum"  # whether Reg is a sum, as in Eq. 5, or a mean
    normalise: bool | None = None  # whether Reg takes cosines or inner products of the rows; by default as margin does
    # Whether a row is also pulled along itself, as in Eq. 5. With inner products this is most of a step and lengthens
    # rows; Eqs. 10 to 12 leave it out.
    self_term: bool = True
    tangential: bool = False  # whether rows only turn and keep their length
    # If given, so many classes are drawn for each step, and Reg is their part of the sum, scaled up. This is for more
    # classes than the exact sum has time for.
    anchors: PositiveInt | None = None
    # A secret that the clients share, for people whom several clients hold (the general case of the paper). With it,
    # clients send a token for each person. The server averages the rows of one person over its group of clients, and
    # only classes of clients outside that group push it away. The server learns who is shared, but not who it is, as
    # long as it does not have the secret. (Over a network it has a digest of it; clients bring the secret to `join`.)
    link: str | None = None
    # A person has one row for all who hold them where at least so many clients speak of them in a round; otherwise each
    # gets its own row back. A client that only claims to hold somebody gets a mean of so many rows, less one, at least.
    # With 2 it gets the row of the other. So many clients less one who claim it together get that of the only true
    # holder: choose it larger than the number of clients that could work together, by two.
    holders: Annotated[int, at_least(2)] = 3
    fixed: bool = False  # class embeddings stay as they began; without regulariser, the paper's FedPE + Fixed
    weighting: Weighting = "samples"  # of the average: by samples, n_k as above, or uniform
    head_init: HeadInit = "mean"  # how W_k begins when a client first takes part

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.link is not None and (not self.link or self.regulariser == "none"):
            raise ValueError("link must not be empty, and needs a regulariser: without one no class embedding is sent")
        if self.fixed and self.regulariser != "none":
            raise ValueError('fixed class embeddings cannot be corrected: set regulariser = "none" or fixed = false')

    @property
    def withheld(self) -> frozenset[str]:
        if self.regulariser == "none":
            return frozenset({"class_embeddings", "aliases"})
        return frozenset() if self.link else frozenset({"aliases"})

    def start(self, previous: ServerState | None, server: Server) -> State:
        return State(model=previous.model if previous else server.initial, class_embeddings={})

    def send(self, state: State, client: ClientInfo) -> Down:
        return Down(model=state.model, class_embeddings=state.class_embeddings.get(client.name))

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        client.backbone.load(down.model)
        rows = own_rows(self.head_init, client, down.class_embeddings, private)
        fit = self.train(client, down.model, [] if self.fixed else [rows], self.classification(rows))
        up = Up(
            model=client.backbone.state(),
            class_embeddings=None if "class_embeddings" in self.withheld else ClassEmbeddings(rows),
            aliases=Aliases(tokens_of(client.train.identities, self.link)) if self.link else None,
            samples=Count(len(client.train)),
            training=Scalars({"loss": fit.loss}),
        )
        return up, Private(class_embeddings=rows)

    def objection(self, up: Up) -> str | None:
        if problem := super().objection(up):
            return problem
        missing = [name for name in ("class_embeddings", "aliases") if not getattr(up, name)]
        needed = [name for name in missing if name not in self.withheld]
        return f"it sends no {needed[0]}" if needed else None

    def merge(self, state: State, replies: Iterable[Reply[Up]], server: Server) -> State:
        heard: dict[str, ClassEmbeddings] = {}
        aliases = dict(state.aliases)

        def models() -> Iterator[tuple[Tensor, float]]:
            for reply in replies:
                if reply.up.class_embeddings:
                    heard[reply.client.name] = reply.up.class_embeddings
                if reply.up.aliases:
                    aliases[reply.client.name] = reply.up.aliases
                yield reply.up.model.flat, weight_of(self.weighting, reply.up.samples.value)

        model = server.aggregate_models(models(), state.model)
        eta = self.lr or self.training.rate_of(server.round, server.rounds)

        def correct(rows: Tensor, owners: Tensor, moving: Tensor) -> Tensor:
            for _ in range(self.steps):
                rows = self.step(rows, owners, moving, eta, drawn(self.anchors, rows, server.generator))
            return rows

        shared = Shared(aliases, self.holders) if self.link else None
        rows = corrected(state.class_embeddings, heard, correct, server.backbone.device, shared)
        return State(model=model, class_embeddings=rows, aliases=aliases)

    def step(self, rows: Tensor, owners: Tensor, moving: Tensor, eta: float, anchors: Tensor | None = None) -> Tensor:
        """W - lambda eta grad Reg(W), where rows may move."""
        how: Any = {"normalise": self.normalise, "tangential": self.tangential, "reduction": self.reduction}
        if self.regulariser == "cosine":  # its sum over all pairs takes no longer than one over the rows
            slope = cosine_regulariser(rows, owners, self.margin, **how)
        else:
            slope = softmax_regulariser(rows, owners, self.margin, self_term=self.self_term, anchors=anchors, **how)
        change = moving * slope.gradient
        return rows - self.pace(moving * rows, change, eta) * change

    def pace(self, rows: Tensor, change: Tensor, eta: float) -> float:
        """lambda eta: as it is given, or such that `change` has the displacement wanted of these rows."""
        if self.displacement is None:
            return self.strength * eta
        length = float(change.norm())
        return self.displacement * float(rows.norm()) / length if length else 0.0
