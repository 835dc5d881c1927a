"""Class embeddings leave a client only as noised centres of clusters of them (after PrivacyFace; Meng et al., 2022).

client: put every class embedding, of length one, to the nearest of k anchors
        c_j <- the sum of those at anchor j + z xi_j, xi_j Gaussian, of length one again
        send the centres that stand out from the noise; they are the anchors of the next round
server: handle them as class embeddings of the client
client: move every class embedding by as much as the server has moved its centre

One class embedding more or less changes one sum by no more than 1, and no anchor: the first are random, and all others
are noised centres that were released before. So a round is a Gaussian mechanism, as in a step of private k-means.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Client, ClientInfo, Reply, Server, Types
from personae.core.bounds import PositiveFloat, PositiveInt
from personae.core.layer import Layer, Layered, described, exchanged, extended, recast
from personae.core.mechanism import Mechanism
from personae.core.message import Broadcast, LocalState, Message, ServerState
from personae.core.payload import ClassEmbeddings
from personae.parts.heads import OwnHead
from personae.parts.secret_noise import Randomness, gaussian, new_key

FIELD = "class_embeddings"


class NoisedCentres(ClassEmbeddings):
    """Directions of groups of a client's people, with noise."""

    meaning = (
        "directions of groups of the client's people, with noise; of few people, or with little noise, they say as "
        "much as a vector for each"
    )
    short = "noised centres"
    is_template = False

    @property
    def identities(self) -> None:  # type: ignore[override]
        """It does not say of how many people it speaks."""


@dataclass(frozen=True, kw_only=True)
class Kept(LocalState):
    """What a client keeps besides."""

    noise_key: Tensor
    anchors: Tensor  # [k, D] of the next round
    centres: Tensor  # those that it sent last
    members: Tensor  # int64 [classes]: to which of these each class embedding belongs; -1 for none


@dataclass(frozen=True, kw_only=True)
class Centres(Layer):
    """Clients send noised centres of clusters in the place of class embeddings, and move these as their centres move.

    Epsilon is for one class embedding more or less, given those of the client's other people. These were trained beside
    it, and what they say of it is not counted; nor is what the model says. A cluster stands out from the noise once it
    has more than about `multiplier` times the root of the width of an embedding of members.
    """

    name: ClassVar[str] = "centres"

    clusters: PositiveInt  # k: how many centres a client sends at most
    multiplier: PositiveFloat  # z: the standard deviation of the noise on a sum of vectors of length one
    randomness: Randomness = "secret"  # seed: somebody who knows the seed can compute the noise and subtract it

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(
            multiplier=self.multiplier,
            unit="class embedding",
            against="server",
            covers=(FIELD,),
            secret=self.randomness == "secret",
        )

    def check(self, algorithm: AnyAlgorithm) -> None:
        name, types = described(algorithm), algorithm.types
        kinds = {**types.down.kinds(), **types.up.kinds()}
        both = all(FIELD in message.kinds() for message in (types.down, types.up))
        if not both or kinds[FIELD] is not ClassEmbeddings or FIELD in algorithm.withheld:
            raise ValueError(f"clients of {name} send no class embeddings and get none back: there is nothing to noise")
        if not issubclass(types.private, OwnHead):
            raise ValueError(f"clients of {name} do not keep their class embeddings, which would be lost")
        others = [field for field, kind in types.up.kinds().items() if kind.__name__ == "Aliases"]
        if any(field not in algorithm.withheld for field in others):
            raise ValueError(f"{name} sends a token for each person, which centres have none for: take link out")

    def types(self, inner: Types) -> Types:
        return replace(
            inner,
            down=exchanged(inner.down, **{FIELD: NoisedCentres | None}),
            private=extended(inner.private, Kept),
            up=exchanged(inner.up, **{FIELD: NoisedCentres}),
        )

    def send(self, around: Layered, state: ServerState, client: ClientInfo) -> Broadcast:
        down: Any = around.inner.send(state, client)
        moved = down.class_embeddings
        return recast(around.types.down, down, class_embeddings=moved and NoisedCentres(moved.vectors))

    def local(
        self, around: Layered, down: Broadcast, private: LocalState | None, client: Client
    ) -> tuple[Message, LocalState]:
        received: NoisedCentres | None = getattr(down, FIELD)
        own = None
        if isinstance(private, Kept) and isinstance(private, OwnHead):
            own = ClassEmbeddings(_moved(private.class_embeddings, private, received))
        plain = recast(around.inner.types.down, down, class_embeddings=own)
        up, kept = around.inner.local(plain, private, client)
        rows = F.normalize(up.class_embeddings.vectors.cpu())
        noted = self._noted(rows, private, client)
        more = {name: getattr(noted, name) for name in Kept.hints()}
        up = recast(around.types.up, up, class_embeddings=NoisedCentres(noted.centres))
        return up, recast(around.types.private, kept, **more)

    def merge(
        self, around: Layered, state: ServerState, replies: Iterable[Reply[Message]], server: Server
    ) -> ServerState:
        def plain(up: Any) -> Message:
            vectors = up.class_embeddings.vectors  # there may be none
            rows = ClassEmbeddings(vectors) if len(vectors) else None
            return recast(around.inner.types.up, up, class_embeddings=rows)

        inside = (Reply(reply.client, plain(reply.up)) for reply in replies)
        return recast(around.types.state, around.inner.merge(state, inside, server))

    def _noted(self, rows: Tensor, private: LocalState | None, client: Client) -> Kept:
        """The noised centres of these rows, and to which of them each row belongs."""
        width = rows.shape[1]
        if isinstance(private, Kept):
            key, anchors = private.noise_key, private.anchors
        else:
            key = new_key(self.randomness, client.generator)
            anchors = F.normalize(gaussian(key, "anchors", self.clusters * width).float().view(-1, width))
        nearest = (rows @ anchors.T).argmax(1)
        sums = torch.zeros(self.clusters, width).index_add_(0, nearest, rows)
        noise = self.multiplier * gaussian(key, f"centres/{client.round}", sums.numel()).float().view_as(sums)
        noised = sums + noise
        stands_out = noised.norm(dim=1) > 1.5 * self.multiplier * math.sqrt(width)
        number = torch.where(stands_out, stands_out.cumsum(0) - 1, -1)
        anchors = torch.where(stands_out[:, None], F.normalize(noised), anchors)
        return Kept(noise_key=key, anchors=anchors, centres=anchors[stands_out], members=number[nearest])


def _moved(rows: Tensor, kept: Kept, received: NoisedCentres | None) -> Tensor:
    """Every row, moved in proportion to its length by as much as its centre was."""
    if received is None or received.vectors.shape != kept.centres.shape:
        return rows
    ways = received.vectors.cpu() - kept.centres.cpu()
    ways = torch.cat([ways, torch.zeros(1, ways.shape[1])])  # the last, at -1, for rows without a centre
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows + lengths * ways[kept.members.cpu()].to(rows.device)
