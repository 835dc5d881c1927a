"""Laws of codecs, averages, layouts and seeds, on whatever hypothesis comes up with."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from personae.core import wire
from personae.core.aggregation import weighted_mean
from personae.core.layout import Layout
from personae.core.message import LocalState, Message
from personae.core.payload import ClassEmbeddings, Count, ModelState, PublicEmbeddings, Scalars
from personae.core.rng import seed_of

law = settings(deadline=None, max_examples=100, derandomize=True)

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
figure_names = st.from_regex(r"[0-9A-Za-z][0-9A-Za-z @:/()._%+-]{0,63}", fullmatch=True)
anything = st.floats(width=32)  # nan, infinities and minus zero, too
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=5).map(tuple), min_size=1, max_size=6))
    names = draw(st.lists(st.text(min_size=1), min_size=len(shapes), max_size=len(shapes), unique=True))
    return Layout(tuple(names), tuple(shapes), draw(st.integers(0, len(shapes))))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    values = torch.tensor(draw(st.lists(anything, min_size=math.prod(shape), max_size=math.prod(shape))))
    tensor = values.reshape(shape).nan_to_num(0.0, 9.0, -9.0).clamp(-100, 100)
    dtype = draw(st.sampled_from(DTYPES))
    tensor = values.reshape(shape) if dtype == torch.float32 else tensor.to(dtype)
    return tensor.T if tensor.ndim == 2 and draw(st.booleans()) else tensor


def same(left: Tensor, right: Tensor) -> bool:
    """Equal in type, shape and every bit, nan included."""
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*raw)


@dataclass(frozen=True, kw_only=True)
class Kept(LocalState):
    rows: Tensor
    maybe: Tensor | None
    table: dict[str, Tensor]
    counts: dict[str, int]
    number: float
    whole: int
    yes: bool
    text: str | None


@law
@given(
    tensors(),
    st.none() | tensors(),
    st.dictionaries(st.text(), tensors(), max_size=4),
    st.dictionaries(st.text(), st.integers(), max_size=4),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.none() | st.text(),
)
def test_any_kept_record_survives_bytes(rows, maybe, table, counts, number, whole, yes, text):
    kept = Kept(rows=rows, maybe=maybe, table=table, counts=counts, number=number, whole=whole, yes=yes, text=text)
    again = wire.decode(Kept, wire.from_bytes(wire.to_bytes(wire.encode(kept))), Layout(("a",), ((1,),), 1))
    assert same(again.rows, rows)
    assert (again.maybe is None) == (maybe is None)
    assert maybe is None or same(again.maybe, maybe)
    assert list(again.table) == list(table)
    assert all(same(again.table[key], table[key]) for key in table)
    assert again.counts == counts
    assert again.number == number or (math.isnan(again.number) and math.isnan(number))
    assert math.copysign(1, again.number) == math.copysign(1, number) or math.isnan(number)
    assert (again.whole, again.yes, again.text) == (whole, yes, text)
    assert type(again.whole) is int


@dataclass(frozen=True, kw_only=True)
class Update(Message):
    model: ModelState
    samples: Count
    figures: Scalars
    class_embeddings: ClassEmbeddings | None
    public_embeddings: PublicEmbeddings


@law
@given(
    layouts(),
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(figure_names, st.floats(allow_nan=False), max_size=5),
    st.none() | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.data(),
)
def test_any_message_survives_bytes(layout, count, figures, shape, data):
    values = data.draw(st.lists(anything, min_size=layout.size, max_size=layout.size))
    update = Update(
        model=ModelState(layout, torch.tensor(values)),
        samples=Count(count),
        figures=Scalars(figures),
        class_embeddings=None if shape is None else ClassEmbeddings(torch.randn(shape)),
        public_embeddings=PublicEmbeddings(torch.ones(2, 3)),
    )
    again = wire.decode(Update, wire.from_bytes(wire.to_bytes(wire.encode(update))), layout)
    assert same(again.model.flat, update.model.flat)
    assert again.samples == update.samples
    assert again.figures == update.figures
    assert (again.class_embeddings is None) == (shape is None)
    assert shape is None or same(again.class_embeddings.vectors, update.class_embeddings.vectors)
    assert same(again.public_embeddings.vectors, update.public_embeddings.vectors)


@law
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_one_kind_of_error(content):
    try:
        packet = wire.from_bytes(content)
    except wire.WireError:
        return
    assert isinstance(packet.scalars, dict)


@law
@given(layouts(), st.data())
def test_flatten_and_views_are_inverse(layout, data):
    flat = torch.tensor(data.draw(st.lists(anything, min_size=layout.size, max_size=layout.size)))
    views = layout.views(flat)
    assert list(views) == list(layout.names)
    assert [tuple(view.shape) for view in views.values()] == list(layout.shapes)
    assert all(view.numel() == 0 or view.untyped_storage().data_ptr() == flat.data_ptr() for view in views.values())
    assert same(layout.flatten({name: view.clone() for name, view in views.items()}), flat)
    assert 0 <= layout.trainable_size <= layout.size


clients = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.lists(st.lists(floats, min_size=3, max_size=3), min_size=count, max_size=count),
        st.lists(st.integers(1, 10**6), min_size=count, max_size=count),
    )
)


@law
@given(layouts(), st.data())
def test_a_model_is_the_sum_of_its_parts(layout, data):
    """Whichever entries are taken out and put into another model: these are the first's, all others the second's."""
    names = data.draw(st.sets(st.sampled_from(layout.names), min_size=1))
    one, other = (ModelState(layout, torch.randn(layout.size)) for _ in range(2))
    part, rest = layout.only(names), layout.without(names)
    assert set(part.names) == names
    assert part.size + rest.size == layout.size
    assert part.trainable + rest.trainable == layout.trainable
    mixed = other.with_entries(part, one.entries(part))
    views = [layout.views(model.flat) for model in (one, other, mixed)]
    for name in layout.names:
        assert torch.equal(views[2][name], views[0][name] if name in names else views[1][name])
    assert torch.equal(one.with_entries(part, one.entries(part)).flat, one.flat)


def mean_of(vectors, weights) -> np.ndarray:
    pairs = ((torch.tensor(vector), float(weight)) for vector, weight in zip(vectors, weights, strict=True))
    return weighted_mean(pairs).double().numpy()


@law
@given(clients)
def test_a_mean_lies_between_its_vectors_and_is_the_one_of_double_precision(drawn):
    vectors, weights = drawn
    table = np.array(vectors, dtype=np.float64)
    assume(np.abs(table).max() < 1e38)  # so that differences of two float32 are float32 as well
    mean = mean_of(vectors, weights)
    slack = 2 * len(vectors) * 2.0**-23 * np.abs(table).max() + 1e-44  # a rounding or two in each step
    assert (mean >= table.min(0) - slack).all()
    assert (mean <= table.max(0) + slack).all()
    assert np.abs(mean - np.average(table, axis=0, weights=weights)).max() <= slack


@law
@given(clients, st.randoms(use_true_random=False))
def test_the_order_of_clients_matters_to_rounding_alone(drawn, random):
    vectors, weights = drawn
    assume(np.abs(vectors).max() < 1e38)
    order = list(range(len(vectors)))
    random.shuffle(order)
    slack = 4 * len(vectors) * 2.0**-23 * np.abs(vectors).max() + 1e-44
    shuffled = mean_of([vectors[index] for index in order], [weights[index] for index in order])
    assert np.abs(mean_of(vectors, weights) - shuffled).max() <= slack


@law
@given(st.lists(floats, min_size=1, max_size=5), st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
def test_the_mean_of_equal_models_is_that_model_to_the_bit(vector, weights):
    model = torch.tensor(vector)
    assert torch.equal(weighted_mean((model, float(weight)) for weight in weights), model)


words = st.lists(st.integers() | st.text(st.sampled_from("\x1fa:strin01")) | st.text(), max_size=5)


@law
@given(words, words)
def test_different_words_give_different_seeds_and_the_same_the_same(one, other):
    assert (seed_of(*one) == seed_of(*other)) == (one == other)
