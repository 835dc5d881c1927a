"""Regularisers over the class embeddings of many clients: their values and gradients in closed form, block by block.

`rows` [C, D] holds the class embeddings of all clients, `owners` [C] whose each one is, in ascending order: the rows of
a client stand together. Where identities may be shared, each has one row, and `owners` [C, K] marks all who hold it.
Every function gives a `Slope`: the regulariser and its gradient in the rows. No C x C array exists at any time: memory
is that of the rows and of `block` x C similarities, time that of two products of matrices.

Where even that time is too much, `anchors` names some of the classes, drawn at random: a regulariser is a sum over
classes, and the sum over these alone, scaled up, has the exact one as its mean. Time falls with their number.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.payload import Aliases, ClassEmbeddings
from personae.errors import Diverged
from personae.parts.margins import Margin

Reduction = Literal["sum", "mean"]

BLOCK = 256


class Slope(NamedTuple):
    value: Tensor  # float64: a sum over up to C x C terms
    gradient: Tensor  # [C, D]


@torch.no_grad()
def softmax_regulariser(
    rows: Tensor,
    owners: Tensor,
    margin: Margin,
    *,
    normalise: bool | None = None,
    self_term: bool = True,
    tangential: bool = False,
    reduction: Reduction = "sum",
    anchors: Tensor | None = None,
    block: int = BLOCK,
) -> Slope:
    """The softmax regulariser of FedGC (Eq. 5): each class against the classes of all other clients.

    Reg(W) = sum_a -log e^{z_aa} / (e^{z_aa} + sum_b e^{z_ab}), over the classes b of other clients than that of a. The
    self term z_aa stays in the denominator; other classes of the same client do not enter, local training sees to them.
    (A shared class a meets the classes b of clients that do not hold a.) z_ab = w_b·w'_a, where w' = w is held fixed:
    with P the softmax of z, the gradient is P'W - W.

    The form is that of the local loss, `margin`: softmax takes inner products as above; cosface and arcface take
    z_ab = s·cos(w_b, w'_a), with the margin at the true class: z_aa = s·(1 - m) or s·cos m. (There the gradient of z_aa
    is zero: at an angle of zero its cosine is at its peak, and the cone that arcface's margin makes of it has no side.)
    `normalise` overrides what the margin does: False takes the inner products of Eq. 5, without a margin, whatever the
    local loss; True takes cosines times the margin's scale, under softmax too.

    The gradient of inner products has two parts that do not tell the classes of clients apart. `self_term` says whether
    z_aa is a function of w_a: it lengthens each row by (1 - p_aa) w_a. With z_aa held fixed, Eq. 11 of the paper is
    left. `tangential` leaves out what lies along a row: Reg is a function of directions, and lengths are held fixed.
    Cosines have neither part.

    The mean is over the classes.
    """
    on_sphere = _on_sphere(margin, normalise)
    vectors = F.normalize(rows) if on_sphere else rows
    scale = margin.scale if on_sphere else 1.0
    drop = scale * _margin_at_zero(margin) if on_sphere else 0.0
    value, gradient = _zero(rows), torch.zeros_like(rows)
    logits = rows.new_empty(min(block, len(rows)), len(rows))
    for here, lines in _blocks(rows, anchors, block):
        fixed = vectors[here]
        z = torch.mm(scale * fixed, vectors.T, out=logits[: len(fixed)])
        true = z[lines, here] - drop
        _hide(z, here, owners)
        z[lines, here] = true
        peak = z.amax(1, keepdim=True)
        total = z.sub_(peak).exp_().sum(1, keepdim=True)
        value += (total.log() + peak - true[:, None]).sum(dtype=torch.float64)
        if not self_term:
            z[lines, here] = 0
        gradient.addmm_(z.T, fixed / total, alpha=scale)  # P'W, with the rows of P summed up to one on the way
        if self_term:
            gradient.index_add_(0, here, fixed, alpha=-scale)
    terms = _share(rows, anchors) * (len(rows) if reduction == "mean" else 1)
    return Slope(value / terms, _in_rows(rows, vectors, gradient, on_sphere, tangential).div_(terms))


@torch.no_grad()
def cosine_regulariser(
    rows: Tensor,
    owners: Tensor,
    margin: Margin,
    *,
    normalise: bool | None = None,
    tangential: bool = False,
    reduction: Reduction = "sum",
    block: int = BLOCK,
) -> Slope:
    """The cosine regulariser that FedGC is compared with (FedCos): sum_a sum_b w_b·w'_a, b of other clients than a.

    As in Eq. 5, w' is held fixed, so that the gradient in w_b is the sum of the other clients' rows, as the paper gives
    it. Under cosface and arcface, or with `normalise`, rows count by their direction alone; scale and margin play no
    part. `tangential` is as above. The mean is over the ordered pairs.
    """
    on_sphere = _on_sphere(margin, normalise)
    vectors = F.normalize(rows) if on_sphere else rows
    others, pairs = _sums_of_others(vectors, owners, block)
    value = torch.linalg.vecdot(vectors, others).sum(dtype=torch.float64)
    terms = max(pairs, 1) if reduction == "mean" else 1
    return Slope(value / terms, _in_rows(rows, vectors, others, on_sphere, tangential).div_(terms))


@torch.no_grad()
def spreadout(
    rows: Tensor,
    margin: float,
    *,
    reduction: Reduction = "sum",
    anchors: Tensor | None = None,
    block: int = BLOCK,
) -> Slope:
    """The spreadout regulariser of FedFace (Eq. 9): sum_c sum_{c' != c} max(0, v - d(w_c, w_c'))^2.

    d is the cosine distance 1 - cos and v the `margin`: pairs with a cosine above 1 - v are pushed apart, whoever holds
    them. Both rows of a pair move. The mean is over the ordered pairs.
    """
    vectors = F.normalize(rows)
    value, gradient = _zero(rows), torch.zeros_like(rows)
    cosines = rows.new_empty(min(block, len(rows)), len(rows))
    for here, lines in _blocks(rows, anchors, block):
        fixed = vectors[here]
        excess = torch.mm(fixed, vectors.T, out=cosines[: len(fixed)])
        excess.sub_(1 - margin).clamp_(min=0)  # max(0, v - d)
        excess[lines, here] = 0
        value += torch.linalg.vecdot(excess, excess).sum(dtype=torch.float64)
        gradient.index_add_(0, here, excess @ vectors)
        if anchors is not None:  # summed over all of them, the other rows of the pairs come to the very same
            gradient.addmm_(excess.T, fixed)
    terms = _share(rows, anchors) * (max(len(rows) * (len(rows) - 1), 1) if reduction == "mean" else 1)
    # Each square gives a factor of two; and of all pairs, each is in the sum twice.
    factor = (4 if anchors is None else 2) / terms
    return Slope(value / terms, _through_unit(rows, vectors, gradient.mul_(factor)))


Correction = Callable[[Tensor, Tensor, Tensor], Tensor]  # new rows from the rows, their owners, and which may move


class Shared(NamedTuple):
    """Who of whose people is who, where several clients may hold the same person."""

    aliases: Mapping[str, Aliases]  # of everybody
    holders: int  # so many must speak of a person in a round, before their rows become one


def corrected(
    known: Mapping[str, ClassEmbeddings],
    heard: Mapping[str, ClassEmbeddings],
    correct: Correction,
    device: torch.device,
    shared: Shared | None = None,
) -> dict[str, ClassEmbeddings]:
    """Everybody's rows after a round: `known` from earlier ones, replaced by those `heard` in this one, then corrected.

    `correct` sees all rows at once, but only those heard move; the rest stay as last seen and push the others all the
    same. They are stacked in the order of the names, so that who was seen when plays no part.

    Where people are `shared`, rows of one person that enough clients speak of are one, and each of its holders gets it
    back: the mean of the directions heard, in their median length, so that no holder can outweigh the others by a long
    row. Of a person whom fewer speak of, each holder gets its own row back, which no other holder pushes.
    """
    groups = dict(sorted({**known, **heard}.items()))
    if not heard:
        return groups
    rows, owners = stacked([group.vectors.to(device) for group in groups.values()])
    moving = torch.tensor([name in heard for name in groups], device=device)[owners, None]
    if shared is None:
        moved = correct(rows, owners, moving)
    else:
        tokens = torch.cat([shared.aliases[name].tokens.to(device) for name in groups])
        moved = _as_one(rows, owners, moving, tokens, shared.holders, correct)
    if not moved.isfinite().all():
        raise Diverged("the corrected class embeddings are not finite; lower the strength of the correction")
    parts = moved.split([len(group.vectors) for group in groups.values()])  # type: ignore[no-untyped-call]
    return {name: ClassEmbeddings(part) for name, part in zip(groups, parts, strict=True)}


def _as_one(rows: Tensor, owners: Tensor, moving: Tensor, tokens: Tensor, holders: int, correct: Correction) -> Tensor:
    """Correct with one row for each token that enough speak of; whoever has a token holds all rows of it."""
    people, person = torch.unique(tokens, return_inverse=True)
    members = torch.zeros(len(people), int(owners.max()) + 1, device=rows.device)
    members[person, owners] = 1
    speaking = torch.zeros(len(people), device=rows.device).index_add_(0, person, moving[:, 0].float())
    apart = speaking[person] < holders
    own = torch.arange(1, len(rows) + 1, device=rows.device)
    _, which = torch.unique(person * (len(rows) + 1) + apart * own, return_inverse=True)  # in the order of the tokens
    count = int(which.max()) + 1
    heard = torch.zeros(count, 1, device=rows.device).index_add_(0, which, moving.float()) > 0
    counts = (moving | ~heard[which])[:, 0]  # of somebody of whom nobody speaks, the rows that are known
    means = _one_row_each(rows[counts], which[counts], count)
    held_by = torch.zeros(count, members.shape[1], device=rows.device)
    held_by[which] = members[person]
    return correct(means, held_by, heard)[which]


def _one_row_each(rows: Tensor, which: Tensor, count: int) -> Tensor:
    """One row for all of the same number, of which none counts for more than another; a single one as it is."""
    lengths, sizes = rows.norm(dim=1), torch.bincount(which, minlength=count)
    order = lengths.argsort()
    order = order[which[order].argsort(stable=True)]  # those of a number together, the shorter ones first
    first = sizes.cumsum(0) - sizes
    median = lengths[order[first + (sizes - 1) // 2]]
    directions = rows.new_zeros(count, rows.shape[1]).index_add_(0, which, F.normalize(rows))
    return torch.where(sizes[:, None] == 1, rows[order[first]], directions * (median / sizes)[:, None])


def stacked(groups: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The rows of several owners one after the other, and whose each one is."""
    rows = torch.cat(list(groups))
    sizes = torch.tensor([len(group) for group in groups], device=rows.device)
    return rows, torch.arange(len(groups), device=rows.device).repeat_interleave(sizes)


def drawn(count: int | None, rows: Tensor, generator: torch.Generator) -> Tensor | None:
    """So many anchors at random, in ascending order; None, for all, where no number is given or there are no more."""
    if count is None or count >= len(rows):
        return None
    return torch.randperm(len(rows), generator=generator)[:count].sort().values.to(rows.device)


def _blocks(rows: Tensor, anchors: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions of the anchors (all rows, if None) in blocks, and the lines that they have there."""
    every = torch.arange(len(rows), device=rows.device) if anchors is None else anchors
    for here in every.split(size):  # type: ignore[no-untyped-call]
        yield here, torch.arange(len(here), device=rows.device)


def _share(rows: Tensor, anchors: Tensor | None) -> float:
    """Which part of the sum over all classes the anchors make up."""
    return 1.0 if anchors is None else len(anchors) / len(rows)


def _sums_of_others(vectors: Tensor, owners: Tensor, block: int) -> tuple[Tensor, int]:
    """For each class b the sum of the classes a that it is pushed away from, and the number of all such pairs."""
    if owners.ndim == 1:
        names, counts = torch.unique_consecutive(owners, return_counts=True)
        which = torch.arange(len(names), device=vectors.device).repeat_interleave(counts)
        sums = vectors.new_zeros(len(names), vectors.shape[1]).index_add_(0, which, vectors)
        return (sums.sum(0) - sums)[which], len(vectors) ** 2 - int(counts.square().sum())
    others, pairs = torch.zeros_like(vectors), 0
    for here, _ in _blocks(vectors, None, block):
        apart = ~_inside(here, owners)
        others.addmm_(apart.T.to(vectors.dtype), vectors[here])
        pairs += int(apart.sum())
    return others, pairs


def _inside(here: Tensor, members: Tensor) -> Tensor:
    """bool [block, C]: whether all who hold a class hold the anchor as well, so that nobody outside can push."""
    holders = members.float()
    return holders[here] @ holders.T == holders.sum(1)


def _hide(z: Tensor, here: Tensor, owners: Tensor) -> None:
    """-inf where an anchor of the block meets a class of its own client or, where shared, of those who hold it.

    With one owner each, owners ascend, so that this happens in one band of columns, not much wider than the block.
    """
    if owners.ndim == 2:
        z.masked_fill_(_inside(here, owners), -math.inf)
        return
    anchors = owners[here]
    first = int(torch.searchsorted(owners, anchors[0]))
    last = int(torch.searchsorted(owners, anchors[-1], right=True))
    z[:, first:last].masked_fill_(anchors[:, None] == owners[first:last], -math.inf)


def _on_sphere(margin: Margin, normalise: bool | None) -> bool:
    return margin.kind != "softmax" if normalise is None else normalise


def _margin_at_zero(margin: Margin) -> float:
    """By how much the margin lowers the cosine of a class with itself."""
    return {"softmax": 0.0, "cosface": margin.margin, "arcface": 1 - math.cos(margin.margin)}[margin.kind]


def _in_rows(rows: Tensor, vectors: Tensor, gradient: Tensor, on_sphere: bool, tangential: bool) -> Tensor:
    """In place: the gradient in the rows, from that in `vectors`, which are the rows or their directions."""
    if on_sphere:
        return _through_unit(rows, vectors, gradient)
    if not tangential:
        return gradient
    units = F.normalize(rows)
    return gradient.addcmul_(torch.linalg.vecdot(gradient, units)[:, None], units, value=-1)


def _through_unit(rows: Tensor, vectors: Tensor, gradient: Tensor) -> Tensor:
    """In place: the gradient in the rows of a function of their directions `vectors`, from its gradient in these."""
    along = torch.linalg.vecdot(gradient, vectors)[:, None]
    return gradient.addcmul_(along, vectors, value=-1).div_(rows.norm(dim=1, keepdim=True).clamp_(min=1e-12))


def _zero(rows: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=rows.device)
