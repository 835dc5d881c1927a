"""The server learns the weighted sum of updates, and of single updates nothing (Bonawitz et al. 2017; SecAgg+).

A round has four questions, and whoever does not answer one takes no further part:

keys    client: make two key pairs and a seed b_u for this round; send the public keys
shares  server: put the clients in a circle; send each the keys of its neighbours
        client: deal shares of b_u and of the secret key of its masks to the neighbours, encrypted for each of them
train   server: send beside the model the shares that others dealt to the client
        client: x_u <- (w_u update_u, w_u), as whole numbers; send x_u + PRG(b_u) +- masks with those who dealt
open    server: say whose vectors have come
        client: of each neighbour send one share, of b_v if its vector has come and of its key if not; forget all keys
merge   server: open b_u of those who are in the sum and the keys of those who are not; take their masks out of the sum;
        hand the algorithm inside one reply, the mean

The mathematics are in `parts/secret_sums.py`. Sums are of whole numbers, so that the model has the same bits whoever
the masks were from and in whatever order vectors came.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client, ClientInfo, Question, Reply, Server, Types
from personae.core.bounds import at_least, within
from personae.core.layer import Layer, Layered, described, exchanged, extended, innermost, recast
from personae.core.message import Broadcast, LocalState, Message, ServerState, alternatives
from personae.core.payload import Count, NetworkVector, Payload, PublicEmbeddings, Scalars
from personae.errors import QuorumLost, Refused
from personae.parts import secret_sums as sums
from personae.parts.masked import (
    Masked,
    Members,
    OpenedShares,
    OwnKeys,
    PublicKeys,
    SealedShares,
    as_bytes,
    as_numbers,
    as_tensor,
    masked,
    named,
)
from personae.parts.secret_sums import PUBLIC, Circle, Numbers
from personae.words import counted

# -------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, kw_only=True)
class Advertised(Message):
    keys: OwnKeys


@dataclass(frozen=True, kw_only=True)
class Begin(Message):
    """A round begins."""


@dataclass(frozen=True, kw_only=True)
class Neighbourhood(Message):
    circle: Members  # everybody who sent keys
    keys: PublicKeys  # of the neighbours


@dataclass(frozen=True, kw_only=True)
class Dealt(Message):
    shares: SealedShares  # by receiver


@dataclass(frozen=True, kw_only=True)
class Arrived(Message):
    members: Members  # whose vectors are in the sum


@dataclass(frozen=True, kw_only=True)
class Opened(Message):
    shares: OpenedShares


@dataclass(frozen=True, kw_only=True)
class Known(ServerState):
    """What the server knows besides: during a round who said what, and after it the means of figures."""

    keys: dict[str, OwnKeys] = field(default_factory=dict)
    circle: Members | None = None
    dealt: dict[str, SealedShares] = field(default_factory=dict)  # by receiver, of those who dealt themselves
    opened: dict[str, OpenedShares] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        return dict(self.means)


@dataclass(frozen=True, kw_only=True)
class Secrets(LocalState):
    """What a client keeps until the sum is open, and no longer."""

    answered: str  # the last question
    sealing: Tensor  # secret keys and the seed of its own mask, 32 bytes each
    masking: Tensor
    seed: Tensor
    circle: Members | None = None
    keys: PublicKeys | None = None  # of the neighbours
    own: Tensor | None = None  # the share of its seed that it has itself
    held: SealedShares | None = None  # what neighbours dealt, by sender


# ---------------------------------------------------------------------------------------------------------------- layer

KEYS, SHARES, OPEN = "keys", "shares", "open"
QUESTIONS = Question(KEYS, Begin, Advertised), Question(SHARES, Neighbourhood, Dealt), Question(OPEN, Arrived, Opened)
SUMMABLE = (NetworkVector, PublicEmbeddings, Count, Scalars)


@dataclass(frozen=True, kw_only=True)
class SecretSum(Layer):
    """The server learns the weighted mean of updates and figures, and nothing of a single client.

    Updates, sums of weights and figures travel under masks that cancel in the sum. Clients may vanish at any moment of
    a round, as long as `threshold` of them stay; with fewer, the round is refused and nothing is opened. A mean is off
    by at most 2^-25 times clients over weights, for rounding to whole numbers.

    The server cannot check single updates: clients are trusted to send honest ones. Put `clip` inside to bound what
    an honest client contributes. Masks hide updates from a server that is curious, or whose records are taken later.
    A server that lies about the keys of clients can defeat them.
    """

    name: ClassVar[str] = "secret-sum"
    hides_single_updates: ClassVar[bool] = True

    # the share of clients, and of a client's neighbourhood, that must stay; more than half
    threshold: Annotated[float, within("(0.5, 1]")] = 2 / 3
    # the fewest clients that a sum may be of
    least: Annotated[int, at_least(3, "of a sum of two, either client can tell the other's part")] = 3
    neighbours: int = 0  # how many others a client has masks in common with, an even number; 0: all others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours % 2 or self.neighbours < 0:
            raise ValueError(f"neighbours is {self.neighbours}, it must be even and not negative")

    def check(self, algorithm: AnyAlgorithm) -> None:
        for name, kind in algorithm.types.up.kinds().items():
            if name not in algorithm.withheld and not issubclass(kind, SUMMABLE):
                raise ValueError(f"{described(algorithm)} sends {name} ({kind.__name__}), which cannot be added up")

    def types(self, inner: Types) -> Types:
        hidden = {}
        for name, hint in inner.up.hints().items():
            kind = next(kind for kind in alternatives(hint) if kind is not NoneType)
            if issubclass(kind, SUMMABLE):
                hidden[name] = masked(kind) | None if NoneType in alternatives(hint) else masked(kind)
        return replace(
            inner,
            state=extended(inner.state, Known),
            down=extended(inner.down, dealt=SealedShares | None),
            up=exchanged(inner.up, **hidden),
            before=QUESTIONS[:2],
            after=QUESTIONS[2:],
            session=Secrets,
        )

    # ------------------------------------------------------------------------------------------------------ the server

    def start(self, around: Layered, previous: ServerState | None, server: Server) -> ServerState:
        sums.require_flower()
        return super().start(around, previous, server)

    def ask(
        self,
        around: Layered,  # noqa: ARG002
        question: str,
        state: ServerState,
        client: ClientInfo,
        cohort: Sequence[ClientInfo],
    ) -> Message:
        assert isinstance(state, Known)
        if question == KEYS:
            return Begin()
        assert state.circle is not None
        if question == OPEN:
            members = Members(as_numbers(each.index for each in cohort))
            if reason := self._too_few(self._circle(state.circle), set(members.order.tolist())):
                raise QuorumLost(f"{reason}; nothing was opened")
            return Arrived(members=members)
        near = self._circle(state.circle).neighbours(client.index)
        keys = {each.index: as_bytes(state.keys[each.name].content) for each in cohort if each.index in near}
        return Neighbourhood(circle=state.circle, keys=PublicKeys.made(keys))

    def hear(
        self,
        around: Layered,  # noqa: ARG002
        question: str,
        state: ServerState,
        replies: Iterable[Reply[Any]],
        server: Server,
    ) -> ServerState:
        assert isinstance(state, Known)
        said = list(replies)
        if question == KEYS:
            order = torch.randperm(len(said), generator=server.generator).tolist()
            return replace(
                state,
                keys={each.client.name: each.up.keys for each in said},
                circle=Members(as_numbers(said[place].client.index for place in order)),
            )
        if question == OPEN:
            return replace(state, opened={each.client.name: each.up.shares for each in said})
        assert state.circle is not None
        circle = self._circle(state.circle)
        sealed = {each.client.index: each.up.shares.by_owner() for each in said}
        dealt = {}
        for each in said:
            near = circle.neighbours(each.client.index)
            senders = [other for other in near if each.client.index in sealed.get(other, {})]
            dealt[each.client.name] = SealedShares.made({other: sealed[other][each.client.index] for other in senders})
        return replace(state, dealt=dealt)

    def send(self, around: Layered, state: ServerState, client: ClientInfo) -> Broadcast:
        assert isinstance(state, Known)
        return recast(around.types.down, around.inner.send(state, client), dealt=state.dealt.get(client.name))

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        assert isinstance(state, Known)
        total: Numbers | None = None
        members, lengths = list[ClientInfo](), dict[str, int]()
        for reply in replies:
            parts = {name: getattr(reply.up, name) for name in reply.up.hints()}
            vectors = {name: each.values.numpy() for name, each in parts.items() if isinstance(each, Masked)}
            found = {name: len(vector) for name, vector in vectors.items()}
            if total is None:
                total, lengths = np.concatenate(list(vectors.values())), found
            elif found != lengths:
                raise QuorumLost(f"round {server.round}: {reply.client.name} sent other fields than the others")
            else:
                np.add(total, np.concatenate(list(vectors.values())), out=total)
            members.append(reply.client)
        assert total is not None
        self._unmask(total, members, state, server)
        up, means = self._mean(around, sums.floating(total), lengths, len(members), server)
        merged = around.inner.merge(state, [Reply(ClientInfo("everybody", -1), up)], server)
        return recast(around.types.state, merged, keys={}, circle=None, dealt={}, opened={}, means=means)

    def _unmask(self, total: Numbers, members: Sequence[ClientInfo], state: Known, server: Server) -> None:
        """Take the masks out of the sum; what cannot be opened stops the round before anything is known."""
        assert state.circle is not None
        circle, present = self._circle(state.circle), {each.index for each in members}
        indices = {client.name: client.index for client in server.clients}
        keys = {indices[name]: as_bytes(each.content) for name, each in state.keys.items()}
        shares = {indices[name]: each.by_owner() for name, each in state.opened.items()}
        for client in [client for client in server.clients if client.name in state.dealt]:
            near = circle.neighbours(client.index)
            said = [shares[holder] for holder in (*near, client.index) if holder in shares]
            found = [each[client.index] for each in said if client.index in each]
            enough = sums.needed(self.threshold, len(near) + 1)
            if len(found) < enough:
                raise QuorumLost(
                    f"round {server.round}: {len(found)} of {counted(len(near) + 1, 'client')} gave the share that "
                    f"opens the mask of {client.name}, and {enough} are needed; the sum was not opened"
                )
            try:
                secret = sums.opened(found[:enough])
                if client.index in present:
                    sums.add_mask(total, secret, -1)
                else:
                    for other in present.intersection(near):
                        key = sums.agreed(secret, keys[other][PUBLIC:])
                        sums.add_pair_mask(total, other, client.index, key, -1)
            except ValueError as error:
                raise QuorumLost(f"round {server.round}: shares of {client.name} do not fit: {error}") from error
        if not sums.within(total):
            raise QuorumLost(
                f"round {server.round}: the masks did not cancel, since some client sent wrong shares or a wrong "
                "vector; a secret sum does not tell which"
            )

    def _mean(
        self, around: Layered, total: Tensor, lengths: Mapping[str, int], clients: int, server: Server
    ) -> tuple[Message, dict[str, float]]:
        """What the algorithm inside would have been sent by one client that is everybody, and the mean figures."""
        kinds, means = around.inner.types.up.kinds(), dict[str, float]()
        sums_of = dict(zip(lengths, torch.split(total, list(lengths.values())), strict=True))
        counts = [values for name, values in sums_of.items() if kinds[name] is Count]
        weight = float(counts[0]) if counts and _by_samples(around) else float(clients)
        if weight <= 0:
            raise QuorumLost(f"round {server.round}: the weights of all clients add up to {weight:g}")
        up: dict[str, Payload | None] = dict.fromkeys(kinds)
        for name, values in sums_of.items():
            kind = kinds[name]
            if issubclass(kind, NetworkVector):
                up[name] = kind(kind.part(server.backbone.layout), (values / weight).float())
            elif issubclass(kind, PublicEmbeddings):
                up[name] = kind((values / weight).float().reshape(-1, server.backbone.width))
            elif issubclass(kind, Count):
                up[name] = kind(round(float(values)))
            else:
                for figure, said, number in zip(named(around.inner.figures), *values.reshape(2, -1), strict=True):
                    means |= {figure: float(said / number)} if number else {}
                up[name] = Scalars(means)
        return around.inner.types.up(**up), means

    # ------------------------------------------------------------------------------------------------------ the client

    def answer(self, around: Layered, question: str, down: Message, client: Client) -> Message:  # noqa: ARG002
        if question == KEYS:
            return self._begin(client)
        if isinstance(down, Neighbourhood):
            return self._deal(down, client)
        assert isinstance(down, Arrived)
        return self._open(down, client)

    def _begin(self, client: Client) -> Advertised:
        sealing, masking = sums.new_secret(), sums.new_secret()
        client.session.kept = Secrets(
            answered=KEYS, sealing=as_tensor(sealing), masking=as_tensor(masking), seed=as_tensor(sums.new_seed())
        )
        keys = sums.public_of(sealing) + sums.public_of(masking)
        return Advertised(keys=OwnKeys(as_tensor(keys)))

    def _deal(self, down: Neighbourhood, client: Client) -> Dealt:
        kept, me = self._secrets(client, after=KEYS), client.info.index
        circle, keys = self._circle(down.circle), down.keys.by_owner()
        if me not in circle.order or sorted(keys) != circle.neighbours(me):
            raise Refused("the server did not send the keys of this client's neighbours")
        if len(circle.order) < self.least:
            raise Refused(f"a sum of {counted(len(circle.order), 'client')} says too much, {self.least} are the least")
        holders, enough = [*keys, me], sums.needed(self.threshold, len(keys) + 1)
        of_seed, of_key = (sums.dealt(as_bytes(each), enough, len(holders)) for each in (kept.seed, kept.masking))
        sealed = {
            other: sums.seal(sums.agreed(as_bytes(kept.sealing), keys[other][:PUBLIC]), me, other, *shares)
            for other, *shares in zip(keys, of_seed, of_key, strict=False)
        }
        own = as_tensor(of_seed[-1])
        client.session.kept = replace(kept, answered=SHARES, circle=down.circle, keys=down.keys, own=own)
        return Dealt(shares=SealedShares.made(sealed))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        kept, me = self._secrets(client, after=SHARES), client.info.index
        held: SealedShares | None = getattr(down, "dealt")  # noqa: B009 - a field that the layer declares
        assert kept.circle is not None
        assert kept.keys is not None
        keys, clients = kept.keys.by_owner(), len(kept.circle.order)
        senders = set(held.owners.tolist()) if held else set[int]()
        if not senders <= keys.keys() or len(senders) + 1 < sums.needed(self.threshold, len(keys) + 1):
            raise Refused("too few neighbours take part for this client's update to be hidden among theirs")
        up, after = around.inner.local(recast(around.inner.types.down, down), private, client)
        vectors = self._vectors(around, up, clients)
        total = np.concatenate(list(vectors.values()))
        sums.add_mask(total, as_bytes(kept.seed), 1)
        for other in sorted(senders):
            sums.add_pair_mask(total, me, other, sums.agreed(as_bytes(kept.masking), keys[other][PUBLIC:]))
        client.session.kept = replace(kept, answered="train", held=held)
        kinds = around.inner.types.up.kinds()
        parts = torch.split(torch.from_numpy(total), [len(each) for each in vectors.values()])
        hidden = {name: masked(kinds[name])(part) for name, part in zip(vectors, parts, strict=True)}
        return around.types.up(**{**dict.fromkeys(up.hints()), **hidden}), recast(around.types.private, after)

    def _vectors(self, around: Layered, up: Message, clients: int) -> dict[str, Numbers]:
        """What is added up, by field: vectors times the client's weight, its samples, its figures and which it has."""
        fields = {name: getattr(up, name) for name in up.hints()}
        counts = [each.value for each in fields.values() if isinstance(each, Count)]
        weight = float(counts[0]) if counts and _by_samples(around) else 1.0
        found = {}
        for name, payload in fields.items():
            if isinstance(payload, NetworkVector | PublicEmbeddings):
                vector = payload.flat if isinstance(payload, NetworkVector) else payload.vectors.flatten()
                found[name] = sums.fixed(vector.double() * weight, clients)
            elif isinstance(payload, Count):
                found[name] = sums.fixed(torch.tensor([float(payload.value)], dtype=torch.float64), clients)
            elif isinstance(payload, Scalars):
                names, said = named(around.inner.figures), payload.values
                values = [*(said.get(each, 0.0) for each in names), *(float(each in said) for each in names)]
                found[name] = sums.fixed(torch.tensor(values, dtype=torch.float64), clients)
        return found

    def _open(self, down: Arrived, client: Client) -> Opened:
        kept, me = self._secrets(client, after="train"), client.info.index
        assert kept.circle is not None
        assert kept.keys is not None
        assert kept.held is not None
        assert kept.own is not None
        circle, present, keys = self._circle(kept.circle), set(down.members.order.tolist()), kept.keys.by_owner()
        if me not in present or not present <= set(circle.order):
            raise Refused("the server names others as parts of the sum than those who began it")
        if reason := self._too_few(circle, present):
            raise Refused(f"{reason}: the sum is not opened")
        shares = {me: as_bytes(kept.own)}
        for other, sealed in kept.held.by_owner().items():
            key = sums.agreed(as_bytes(kept.sealing), keys[other][:PUBLIC])
            with suppress(ValueError):  # of one who dealt nothing that can be read, the others have to know enough
                of_seed, of_key = sums.unseal(key, other, me, sealed)
                shares[other] = of_seed if other in present else of_key
        client.session.kept = None
        return Opened(shares=OpenedShares.made(shares))

    def _secrets(self, client: Client, *, after: str) -> Secrets:
        """What the client kept when it answered this question of the round; it answers each of them once."""
        kept = client.session.kept
        if not isinstance(kept, Secrets) or kept.answered != after:
            raise Refused("the questions of a secret sum come in their order, each once a round")
        return kept

    def _circle(self, members: Members) -> Circle:
        return Circle.of(members.order.tolist(), self.neighbours)

    def _too_few(self, circle: Circle, present: set[int]) -> str | None:
        """Why a sum of these may not be opened."""
        enough = max(self.least, sums.needed(self.threshold, len(circle.order)))
        if len(present) < enough:
            return (
                f"{len(present)} of {counted(len(circle.order), 'client')} are in the secret sum, {enough} are needed"
            )
        if not circle.connected(present):
            return "so many neighbours vanished that the sums of parts of the clients would be open"
        return None


def _by_samples(around: Layered) -> bool:
    return getattr(innermost(around), "weighting", "uniform") == "samples"
