"""What may be declared, and what may be put into it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from personae.core import wire
from personae.core.backbone import Backbone
from personae.core.layout import Layout
from personae.core.message import Broadcast, LocalState, Message, Nothing, ServerState
from personae.core.payload import ClassEmbeddings, Count, ModelState, PublicEmbeddings, Scalars, known_kinds


class Softened(ModelState):
    """A payload, but none of the declared kinds."""


@pytest.mark.parametrize(
    "kind",
    [Tensor, dict, dict[str, Tensor], Mapping[str, float], nn.Module, int, float, str, list[Tensor], Softened, object],
)
def test_a_message_with_a_field_of_no_payload_kind_is_refused_when_its_class_is_created(kind):
    with pytest.raises(TypeError, match=r"Leak\.rows: .* may not cross"):
        type("Leak", (Message,), {"__annotations__": {"rows": kind}})


@pytest.mark.parametrize("kind", [Tensor | None, ModelState | Tensor, Count | int])
def test_a_union_is_refused_if_any_of_its_members_is(kind):
    with pytest.raises(TypeError, match="may not cross"):
        type("Leak", (Message,), {"__annotations__": {"rows": kind}})


def test_a_message_cannot_inherit_fields_that_it_may_not_declare():
    @dataclass(frozen=True, kw_only=True)
    class Kept(LocalState):
        rows: Tensor

    with pytest.raises(TypeError, match="may not cross"):
        type("Leak", (Message, Kept), {})
    with pytest.raises(TypeError, match="may not cross"):
        type("Leak", (Kept, Message), {})


@pytest.mark.parametrize("base", [Message, LocalState])
def test_a_field_of_two_kinds_is_refused_because_bytes_do_not_tell_them_apart(base):
    with pytest.raises(TypeError, match="either"):
        type("Torn", (base,), {"__annotations__": {"rows": ClassEmbeddings | PublicEmbeddings}})


@pytest.mark.parametrize("kind", [nn.Module, list[int], dict[int, Tensor], dict[str, list[int]], object, bytes])
def test_a_kept_record_refuses_what_it_could_not_write_down(kind):
    with pytest.raises(TypeError, match=r"Odd\.field: .* cannot be kept"):
        type("Odd", (LocalState,), {"__annotations__": {"field": kind}})


@pytest.mark.parametrize("kind", known_kinds().values())
def test_every_payload_kind_may_cross_and_may_be_optional(kind):
    message = type("Fine", (Message,), {"__annotations__": {"one": kind, "two": kind | None}})
    assert dataclass(frozen=True, kw_only=True)(message).payloads() == {"one": kind.__name__, "two": kind.__name__}


@dataclass(frozen=True, kw_only=True)
class Update(Message):
    model: ModelState
    samples: Count
    class_embeddings: ClassEmbeddings | None


def test_a_value_of_another_type_is_refused_when_the_message_is_made(backbone: Backbone):
    state = backbone.state()
    good = Update(model=state, samples=Count(3), class_embeddings=None)
    for field, value in [
        ("model", state.flat),
        ("model", None),
        ("model", Softened(state.layout, state.flat)),
        ("samples", 3),
        ("samples", Scalars({"value": 3.0})),
        ("class_embeddings", torch.zeros(2, 8)),
        ("class_embeddings", PublicEmbeddings(torch.zeros(2, 8))),
    ]:
        with pytest.raises(TypeError, match=rf"Update\.{field}: {type(value).__name__} is not"):
            replace(good, **{field: value})


def test_messages_are_frozen(backbone: Backbone):
    message = Broadcast(model=backbone.state())
    with pytest.raises(AttributeError):
        message.model = backbone.state()  # type: ignore[misc]


def test_the_server_may_keep_what_may_not_cross(layout: Layout):
    @dataclass(frozen=True, kw_only=True)
    class State(ServerState):
        by_name: dict[str, Tensor]
        note: str | None

    state = State(model=ModelState(layout, torch.zeros(layout.size)), by_name={"a/b": torch.ones(2)}, note=None)
    again = wire.decode(State, wire.from_bytes(wire.to_bytes(wire.encode(state))), layout)
    assert again.note is None
    assert list(again.by_name) == ["a/b"]
    assert torch.equal(again.by_name["a/b"], torch.ones(2))


def test_nothing_holds_nothing(layout: Layout):
    assert wire.payload_bytes(Nothing()) == {}
    assert wire.decode(Nothing, wire.from_bytes(wire.to_bytes(wire.encode(Nothing()))), layout) == Nothing()


def test_bytes_are_counted_by_kind(backbone: Backbone):
    update = Update(model=backbone.state(), samples=Count(3), class_embeddings=ClassEmbeddings(torch.zeros(5, 8)))
    size = sum(math.prod(shape) for shape in backbone.layout.shapes)
    assert wire.payload_bytes(update) == {"ModelState": 4 * size, "Count": 8, "ClassEmbeddings": 4 * 5 * 8}
    assert wire.payload_bytes(replace(update, class_embeddings=None)) == {"ModelState": 4 * size, "Count": 8}


@pytest.mark.parametrize("value", [1.0, True, "3", None, torch.tensor(3), math.nan])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(ValueError, match="not a whole number"):
        Count(value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_a_count_is_no_place_for_a_long_text_in_digits(value):
    with pytest.raises(ValueError, match=r"Count has more than 64 bits$"):
        Count(value)


@pytest.mark.parametrize("value", [True, "3", None, torch.tensor(3.0), [1.0]])
def test_scalars_are_numbers(value):
    with pytest.raises(ValueError, match=r"Scalars holds loss = .*, not a number"):
        Scalars({"fine": 1.0, "loss": value})


@pytest.mark.parametrize("name", ["", " loss", "x" * 65, "two\nlines", "Zoë", "<b>", "\x1b[2J", 'say "yes"', "a\\b"])
def test_a_figure_has_the_name_of_a_figure_and_no_text(name):
    with pytest.raises(ValueError, match="no name of a figure"):
        Scalars({"loss": 1.0, name: 2.0})


def test_there_are_as_many_figures_as_somebody_can_want():
    Scalars({f"figure {number}": 1.0 for number in range(1000)})
    with pytest.raises(ValueError, match="1001 figures"):
        Scalars({f"figure {number}": 1.0 for number in range(1001)})


def test_scalars_are_the_same_before_and_after_they_travel(layout: Layout):
    figures = Scalars({"whole": 3, "half": 0.5})
    assert [type(value) for value in figures.values.values()] == [float, float]
    assert Scalars.unpack({}, figures.pack()[1], layout) == figures
    with pytest.raises(OverflowError):
        Scalars({"beyond": 10**400})


@pytest.mark.parametrize("kind", [ClassEmbeddings, PublicEmbeddings])
@pytest.mark.parametrize(
    "rows", [torch.zeros(3), torch.zeros(1, 2, 3), torch.zeros(2, 3).half(), torch.ones(2, 2).int()]
)
def test_embeddings_are_rows_of_float32(kind, rows):
    with pytest.raises(ValueError, match=f"{kind.__name__} is a .* not float32 rows"):
        kind(rows)


def test_a_model_fills_its_layout(layout: Layout):
    for flat in (torch.zeros(layout.size - 1), torch.zeros(1, layout.size), torch.zeros(layout.size).double()):
        with pytest.raises(ValueError, match=f"ModelState holds .* expected {layout.size} of torch.float32"):
            ModelState(layout, flat)
