"""Regularisers over the class embeddings of many clients: their values and gradients in closed form, block by block.

`rows` [C, D] holds the class embeddings of all clients, `owners` [C] whose each one is, in ascending order: the rows of
a client stand together. Every function gives a `Slope`: the regulariser and its gradient in the rows. No C x C array
exists at any time: memory is that of the rows and of `block` x C similarities, time that of two products of matrices.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.payload import ClassEmbeddings
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
    reduction: Reduction = "sum",
    block: int = BLOCK,
) -> Slope:
    """The softmax regulariser of FedGC (Eq. 5): each class against the classes of all other clients.

    Reg(W) = sum_a -log e^{z_aa} / (e^{z_aa} + sum_b e^{z_ab}), over the classes b of other clients than that of a. The
    self term z_aa stays in the denominator; other classes of the same client do not enter, local training sees to
    them. z_ab = w_b·w'_a, where w' = w is held fixed: with P the softmax of z, the gradient is P'W - W.

    The form is that of the local loss, `margin`: softmax takes inner products as above; cosface and arcface take
    z_ab = s·cos(w_b, w'_a), with the margin at the true class: z_aa = s·(1 - m) or s·cos m. (There the gradient of z_aa
    is zero: at an angle of zero its cosine is at its peak, and the cone that arcface's margin makes of it has no side.)
    `normalise` overrides what the margin does: False takes the inner products of Eq. 5, without a margin, whatever the
    local loss; True takes cosines times the margin's scale, under softmax too.

    The mean is over the classes.
    """
    on_sphere = _on_sphere(margin, normalise)
    vectors = F.normalize(rows) if on_sphere else rows
    scale = margin.scale if on_sphere else 1.0
    drop = scale * _margin_at_zero(margin) if on_sphere else 0.0
    value, gradient = _zero(rows), torch.zeros_like(rows)
    logits = rows.new_empty(min(block, len(rows)), len(rows))
    for here in _blocks(len(rows), block):
        fixed = vectors[here]
        z = torch.mm(scale * fixed, vectors.T, out=logits[: len(fixed)])
        own = z[:, here].diagonal()
        true = own - drop
        _hide_same_owner(z, here, owners)
        own.copy_(true)
        peak = z.amax(1, keepdim=True)
        total = z.sub_(peak).exp_().sum(1, keepdim=True)
        value += (total.log() + peak - true[:, None]).sum(dtype=torch.float64)
        gradient.addmm_(z.T, fixed / total, alpha=scale)  # P'W, with the rows of P summed up to one on the way
    gradient.sub_(vectors, alpha=scale)
    terms = len(rows) if reduction == "mean" else 1
    return Slope(value / terms, (_through_unit(rows, vectors, gradient) if on_sphere else gradient).div_(terms))


@torch.no_grad()
def cosine_regulariser(
    rows: Tensor, owners: Tensor, margin: Margin, *, normalise: bool | None = None, reduction: Reduction = "sum"
) -> Slope:
    """The cosine regulariser that FedGC is compared with (FedCos): sum_a sum_b w_b·w'_a, b of other clients than a.

    As in Eq. 5, w' is held fixed, so that the gradient in w_b is the sum of the other clients' rows, as the paper gives
    it. Under cosface and arcface, or with `normalise`, rows count by their direction alone; scale and margin play no
    part. The mean is over the ordered pairs.
    """
    on_sphere = _on_sphere(margin, normalise)
    vectors = F.normalize(rows) if on_sphere else rows
    names, counts = torch.unique_consecutive(owners, return_counts=True)
    which = torch.arange(len(names), device=rows.device).repeat_interleave(counts)
    sums = vectors.new_zeros(len(names), rows.shape[1]).index_add_(0, which, vectors)
    others = (sums.sum(0) - sums)[which]
    value = torch.linalg.vecdot(vectors, others).sum(dtype=torch.float64)
    pairs = len(rows) ** 2 - int(counts.square().sum())
    terms = max(pairs, 1) if reduction == "mean" else 1
    return Slope(value / terms, (_through_unit(rows, vectors, others) if on_sphere else others).div_(terms))


@torch.no_grad()
def spreadout(rows: Tensor, margin: float, *, reduction: Reduction = "sum", block: int = BLOCK) -> Slope:
    """The spreadout regulariser of FedFace (Eq. 9): sum_c sum_{c' != c} max(0, v - d(w_c, w_c'))^2.

    d is the cosine distance 1 - cos and v the `margin`: pairs with a cosine above 1 - v are pushed apart, whoever holds
    them. Both rows of a pair move. The mean is over the ordered pairs.
    """
    vectors = F.normalize(rows)
    value, gradient = _zero(rows), torch.empty_like(rows)
    cosines = rows.new_empty(min(block, len(rows)), len(rows))
    for here in _blocks(len(rows), block):
        excess = torch.mm(vectors[here], vectors.T, out=cosines[: len(vectors[here])])
        excess.sub_(1 - margin).clamp_(min=0)  # max(0, v - d)
        excess[:, here].diagonal().zero_()
        value += torch.linalg.vecdot(excess, excess).sum(dtype=torch.float64)
        torch.mm(excess, vectors, out=gradient[here])
    terms = max(len(rows) * (len(rows) - 1), 1) if reduction == "mean" else 1
    # Each pair is in the sum twice, and each square gives a factor of two.
    return Slope(value / terms, _through_unit(rows, vectors, gradient.mul_(4 / terms)))


Correction = Callable[[Tensor, Tensor, Tensor], Tensor]  # new rows from the rows, their owners, and which may move


def corrected(
    known: Mapping[str, ClassEmbeddings],
    heard: Mapping[str, ClassEmbeddings],
    correct: Correction,
    device: torch.device,
) -> dict[str, ClassEmbeddings]:
    """Everybody's rows after a round: `known` from earlier ones, replaced by those `heard` in this one, then corrected.

    `correct` sees all rows at once, but only those heard move; the rest stay as last seen and push the others all the
    same. They are stacked in the order of the names, so that who was seen when plays no part.
    """
    groups = dict(sorted({**known, **heard}.items()))
    if not heard:
        return groups
    rows, owners = stacked([group.rows.to(device) for group in groups.values()])
    moving = torch.tensor([name in heard for name in groups], device=device)[owners, None]
    moved = correct(rows, owners, moving)
    if not moved.isfinite().all():
        raise Diverged("the corrected class embeddings are not finite; lower the strength of the correction")
    parts = moved.split([len(group.rows) for group in groups.values()])  # type: ignore[no-untyped-call]
    return {name: ClassEmbeddings(part) for name, part in zip(groups, parts, strict=True)}


def stacked(groups: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The rows of several owners one after the other, and whose each one is."""
    rows = torch.cat(list(groups))
    sizes = torch.tensor([len(group) for group in groups], device=rows.device)
    return rows, torch.arange(len(groups), device=rows.device).repeat_interleave(sizes)


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _hide_same_owner(z: Tensor, here: slice, owners: Tensor) -> None:
    """-inf where an anchor of the block meets a class of its own client.

    Owners ascend, so that this happens in one band of columns, not much wider than the block.
    """
    anchors = owners[here]
    first = int(torch.searchsorted(owners, anchors[0]))
    last = int(torch.searchsorted(owners, anchors[-1], right=True))
    z[:, first:last].masked_fill_(anchors[:, None] == owners[first:last], -math.inf)


def _on_sphere(margin: Margin, normalise: bool | None) -> bool:
    return margin.kind != "softmax" if normalise is None else normalise


def _margin_at_zero(margin: Margin) -> float:
    """By how much the margin lowers the cosine of a class with itself."""
    return {"softmax": 0.0, "cosface": margin.margin, "arcface": 1 - math.cos(margin.margin)}[margin.kind]


def _through_unit(rows: Tensor, vectors: Tensor, gradient: Tensor) -> Tensor:
    """In place: the gradient in the rows of a function of their directions `vectors`, from its gradient in these."""
    along = torch.linalg.vecdot(gradient, vectors)[:, None]
    return gradient.addcmul_(along, vectors, value=-1).div_(rows.norm(dim=1, keepdim=True).clamp_(min=1e-12))


def _zero(rows: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=rows.device)
