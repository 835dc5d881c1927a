"""Records as bytes: what arrives is what was declared, or an error that says what is not."""

import json
from dataclasses import dataclass

import pytest
import safetensors.torch
import torch
from torch import Tensor

from personae.core import wire
from personae.core.backbone import Backbone
from personae.core.layout import Layout
from personae.core.message import LocalState, Message
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.core.wire import Packet, WireError


@dataclass(frozen=True, kw_only=True)
class Update(Message):
    model: ModelState
    samples: Count
    figures: Scalars
    class_embeddings: ClassEmbeddings | None


@dataclass(frozen=True, kw_only=True)
class Kept(LocalState):
    first: Tensor
    second: Tensor
    table: dict[str, Tensor]


@pytest.fixture
def update(backbone: Backbone) -> Update:
    return Update(
        model=backbone.state(),
        samples=Count(7),
        figures=Scalars({"loss": 0.25, "1:N tpir@1e-01 (paper)": -1e-300, "a/b": 2.0}),
        class_embeddings=ClassEmbeddings(torch.randn(3, 8)),
    )


def through_bytes(record, layout, *, whole=False):
    content = wire.to_bytes(wire.encode(record, whole=whole))
    return wire.decode(type(record), wire.from_bytes(content), layout, whole=whole)


def test_bytes_are_those_that_safetensors_writes():
    """Arrays may share memory, or lie in it in another order."""
    shared = torch.randn(6)
    kinds = {f"{kind}": torch.arange(3).to(kind) for kind in wire._TYPES}
    shapes = {"one": shared[:3], "two": shared[2:], "none": torch.empty(0, 2), "single": torch.tensor(2.5)}
    orders = {"turned": torch.randn(3, 4).T, "b/ü": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    for arrays in ({}, kinds, shapes, orders, {**orders, **kinds, **shapes}):
        scalars = {"text": 'ü"\\\n', "numbers": [1, 2.5, None]}
        alone = {name: array.clone(memory_format=torch.contiguous_format) for name, array in arrays.items()}
        theirs = safetensors.torch.save(alone, metadata={"numbers": json.dumps(scalars)})
        assert wire.to_bytes(Packet(arrays, scalars)) == theirs


@pytest.mark.parametrize("whole", [False, True])
def test_a_message_comes_back_to_the_bit(update: Update, layout: Layout, whole: bool):
    again = through_bytes(update, layout, whole=whole)
    assert torch.equal(again.model.flat, update.model.flat)
    assert again.model.layout == layout
    assert again.samples == update.samples
    assert again.figures == update.figures
    assert torch.equal(again.class_embeddings.vectors, update.class_embeddings.vectors)


def test_one_vector_is_for_those_who_expect_it_and_has_to_fit(update: Update, layout: Layout):
    packet = wire.encode(update, whole=True)
    assert torch.equal(packet.arrays["model"], update.model.flat)
    with pytest.raises(WireError, match=r"model: .* entries are missing"):
        wire.decode(Update, packet, layout)
    with pytest.raises(WireError, match=r"model: .* entries are missing"):
        wire.decode(
            Update,
            Packet({"class_embeddings/vectors": packet.arrays["class_embeddings/vectors"]}, packet.scalars),
            layout,
            whole=True,
        )
    for wrong in (update.model.flat[1:], update.model.flat.double(), update.model.flat[None]):
        with pytest.raises(WireError, match="model: ModelState holds"):
            wire.decode(Update, Packet({**packet.arrays, "model": wrong}, packet.scalars), layout, whole=True)


def test_the_same_message_gives_the_same_bytes(update: Update):
    assert wire.to_bytes(wire.encode(update)) == wire.to_bytes(wire.encode(update))


def test_tensors_that_share_memory_are_kept_each_on_its_own(layout: Layout):
    rows = torch.arange(12.0).reshape(4, 3)
    kept = Kept(first=rows, second=rows, table={"part": rows[1:], "turned": rows.T, "empty": rows[:0]})
    again = through_bytes(kept, layout)
    assert torch.equal(again.first, rows)
    assert torch.equal(again.second, rows)
    assert torch.equal(again.table["part"], rows[1:])
    assert torch.equal(again.table["turned"], rows.T)
    assert again.table["empty"].shape == (0, 3)


def test_what_is_kept_does_not_drag_a_gradient_along(layout: Layout):
    rows = torch.ones(2, 2, requires_grad=True)
    again = through_bytes(Kept(first=rows, second=rows * 2, table={}), layout)
    assert not again.second.requires_grad
    assert torch.equal(again.second, torch.full((2, 2), 2.0))


def altered(update: Update, change) -> Packet:
    packet = wire.encode(update)
    change(packet)
    return packet


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.arrays.pop("model/0.weight"), "model: 1 entry is missing, 0.weight first"),
        (lambda p: p.arrays.update({"model/x": torch.zeros(1)}), "model: 1 entry is unknown, x first"),
        (lambda p: p.arrays.update({"model/0.weight": torch.zeros(4, 3, 3)}), "0.weight has shape"),
        (lambda p: p.arrays.update({"model/0.weight": p.arrays["model/0.weight"].double()}), "torch.float64, expected"),
        (lambda p: p.arrays.update({"model/0.weight": p.arrays["model/0.weight"].long()}), "torch.int64, expected"),
        (lambda p: p.scalars.update({"model/extra": 1}), "model: ModelState holds"),
        (lambda p: p.scalars.pop("samples/value"), "samples: Count holds"),
        (lambda p: p.scalars.update({"samples/value": 1.5}), "Count is 1.5"),
        (lambda p: p.scalars.update({"samples/value": True}), "Count is True"),
        (lambda p: p.scalars.update({"samples/value": "7"}), "Count is '7'"),
        (lambda p: p.scalars.update({"figures/loss": "low"}), "loss = 'low'"),
        (lambda p: p.scalars.update({"figures/loss": None}), "loss = None"),
        (lambda p: p.scalars.update({"figures/loss": 10**400}), "figures: int too large"),
        (lambda p: p.arrays.update({"figures/sneaked": torch.zeros(9)}), "figures: Scalars holds"),
        (
            lambda p: p.arrays.update({"class_embeddings/vectors": torch.zeros(9)}),
            "class_embeddings: ClassEmbeddings is a torch.float32 array",
        ),
        (
            lambda p: p.arrays.update({"class_embeddings/vectors": torch.zeros(3, 8).half()}),
            "class_embeddings: ClassEmbeddings is a torch.float16",
        ),
        (lambda p: p.arrays.update({"face": torch.zeros(9)}), "1 undeclared entries, face first"),
        (lambda p: p.scalars.update({"name": "Ann"}), "1 undeclared entries, name first"),
    ],
)
def test_anything_missing_surplus_or_different_is_refused_by_name(update: Update, layout: Layout, change, says):
    with pytest.raises(WireError, match=says.replace("(", r"\(")):
        wire.decode(Update, altered(update, change), layout)


def test_a_model_of_another_network_is_refused(update: Update, layout: Layout):
    other = Layout(layout.names[:-1], layout.shapes[:-1], layout.trainable)
    with pytest.raises(WireError, match="1 entry is unknown"):
        wire.decode(Update, wire.encode(update), other)


def framed(numbers: str, arrays: dict[str, Tensor] | None = None) -> bytes:
    return safetensors.torch.save(arrays or {}, metadata={"numbers": numbers})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"garbage" * 100,
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        safetensors.torch.save({"a": torch.zeros(2)}),
        framed("not json"),
        framed("[1, 2]"),
        framed("3"),
        framed("null"),
        framed("[" * 100_000),
        framed("{}", {"a": torch.zeros(64)})[:-5],
    ],
)
def test_bytes_that_are_no_record_give_one_kind_of_error(content: bytes):
    with pytest.raises(WireError, match="not a record"):
        wire.from_bytes(content)


@pytest.mark.parametrize("cut", [1, 7, 8, 100, 2000])
def test_a_record_cut_short_is_no_record(update: Update, cut: int):
    with pytest.raises(WireError, match="not a record"):
        wire.from_bytes(wire.to_bytes(wire.encode(update))[:-cut])


@pytest.mark.parametrize("keys", [[1], [["a"]], ["a", "a"], "a", {"a": 1}, None])
def test_the_names_of_a_table_are_distinct_strings(layout: Layout, keys):
    arrays = {"first": torch.zeros(1), "second": torch.zeros(1), "table/0": torch.zeros(1), "table/1": torch.ones(1)}
    with pytest.raises(WireError, match="table"):
        wire.decode(Kept, Packet(arrays, {"table": keys}), layout)


def test_decoding_leaves_the_packet_alone(update: Update, layout: Layout):
    packet = wire.encode(update)
    names = list(packet.arrays), json.dumps(packet.scalars)
    wire.decode(Update, packet, layout)
    assert (list(packet.arrays), json.dumps(packet.scalars)) == names
