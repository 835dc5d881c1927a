"""Laws of the corrections: a small step never makes things worse, and the order of clients plays no part."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from personae.algorithms import FedGC
from personae.algorithms.fedgc import State, Up
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.payload import ClassEmbeddings, Count, Scalars
from personae.core.rng import generator
from personae.parts.corrections import cosine_regulariser, softmax_regulariser, spreadout, stacked
from personae.parts.margins import Margin
from toys import TinyPlan

law = settings(deadline=None, max_examples=60, derandomize=True)
WIDTH = 8

groups = st.lists(st.integers(1, 5), min_size=1, max_size=6)
seeds = st.integers(0, 2**31)
margins = st.sampled_from([Margin(kind=kind, scale=6.0, margin=0.4) for kind in ("softmax", "cosface", "arcface")])
reductions = st.sampled_from(["sum", "mean"])


def parts_of(sizes: list[int], seed: int, closeness: float = 0.0) -> list[Tensor]:
    """Rows of length one, in random directions or crowded around one."""
    source = torch.Generator().manual_seed(seed)
    centre = closeness * torch.randn(WIDTH, generator=source, dtype=torch.float64)
    return [
        F.normalize(centre + torch.randn(size, WIDTH, generator=source, dtype=torch.float64), dim=1) for size in sizes
    ]


@law
@given(groups, seeds, st.floats(0, 10), st.floats(0.1, 2.0), st.floats(1e-6, 0.05))
def test_spreadout_never_increases_at_a_small_step(
    sizes: list[int], seed: int, closeness: float, margin: float, step: float
) -> None:
    rows, _ = stacked(parts_of(sizes, seed, closeness))
    before = spreadout(rows, margin, reduction="mean")
    after = spreadout(F.normalize(rows - step * before.gradient), margin, reduction="mean")
    assert float(after.value) <= float(before.value) + 1e-15


@law
@given(groups, seeds, margins, reductions, st.randoms(use_true_random=False))
def test_the_order_of_the_clients_changes_no_clients_correction(
    sizes: list[int], seed: int, margin: Margin, reduction: str, random: object
) -> None:
    parts = parts_of(sizes, seed)
    order = list(range(len(parts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for regulariser in (softmax_regulariser, cosine_regulariser):
        one = regulariser(*stacked(parts), margin, reduction=reduction)
        other = regulariser(*stacked([parts[index] for index in order]), margin, reduction=reduction)
        back = other.gradient.split([sizes[index] for index in order])
        for index, part in zip(order, back, strict=True):
            mine = one.gradient.split(sizes)[index]
            torch.testing.assert_close(part, mine, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.value, other.value, rtol=1e-12, atol=1e-12)


@law
@given(groups, seeds, margins, st.randoms(use_true_random=False))
def test_the_order_in_which_clients_are_heard_changes_no_bit_of_their_rows(
    sizes: list[int], seed: int, margin: Margin, random: object
) -> None:
    backbone = Backbone(TinyPlan().build(), WIDTH)
    model = backbone.state()
    server = Server(model, backbone, None, None, generator(0), 1, 1)
    replies = [
        Reply(
            ClientInfo(f"client-{index}", index),
            Up(model=model, class_embeddings=ClassEmbeddings(part.float()), samples=Count(1), training=Scalars({})),
        )
        for index, part in enumerate(parts_of(sizes, seed))
    ]
    algorithm = FedGC(margin=margin, strength=0.1)
    one = algorithm.merge(State(model=model, class_embeddings={}), iter(replies), server)
    random.shuffle(replies)  # type: ignore[attr-defined]
    other = algorithm.merge(State(model=model, class_embeddings={}), iter(replies), server)
    assert list(one.class_embeddings) == list(other.class_embeddings)
    assert all(
        torch.equal(one.class_embeddings[name].vectors, other.class_embeddings[name].vectors)
        for name in one.class_embeddings
    )
