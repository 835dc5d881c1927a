"""What the server refuses, and where updates wait until that is known."""

import math
import random
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from personae.algorithms.fedpe import Up
from personae.core.backbone import Backbone
from personae.core.finite import all_finite
from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.core.quantities import GRADIENT, SAMPLES, STATISTICS, UPDATE
from personae.runtime.firewall import Firewall, credible, measured
from personae.runtime.spool import Spool, spool

BELIEVING = Firewall(credible=math.inf)  # however alike the clients of a round are


@pytest.fixture
def up(backbone: Backbone) -> Up:
    return Up(model=backbone.state(), samples=Count(5), training=Scalars({"loss": 1.0}))


def test_an_ordinary_update_passes(up: Up, backbone: Backbone):
    assert Firewall().problem(up, backbone) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_wherever_they_are(up: Up, backbone: Backbone, value: float):
    @dataclass(frozen=True, kw_only=True)
    class Embedded(Message):
        class_embeddings: ClassEmbeddings

    flat = up.model.flat.clone()
    flat[-1] = value
    firewall = Firewall()
    bad = replace(up, model=ModelState(backbone.layout, flat))
    assert firewall.problem(bad, backbone) == "ModelState holds values that are not finite"
    bad = replace(up, training=Scalars({"loss": 1.0, "other": value}))
    assert firewall.problem(bad, backbone) == "its figures are not finite, or too large to be any"
    rows = Embedded(class_embeddings=ClassEmbeddings(torch.full((2, 8), value)))
    assert firewall.problem(rows, backbone) == "ClassEmbeddings holds values that are not finite"


@pytest.mark.parametrize("firewall", [Firewall(), Firewall(enabled=False)])
def test_class_embeddings_of_another_width_are_refused(backbone: Backbone, firewall: Firewall):
    @dataclass(frozen=True, kw_only=True)
    class Embedded(Message):
        class_embeddings: ClassEmbeddings

    assert firewall.problem(Embedded(class_embeddings=ClassEmbeddings(torch.ones(2, 8))), backbone) is None
    other = Embedded(class_embeddings=ClassEmbeddings(torch.ones(2, 7)))
    assert firewall.problem(other, backbone) == "its class embeddings hold 7 numbers, the network gives 8"


@pytest.mark.parametrize("count", [0, -1, -(10**9), 100_000_001, 10**18])
def test_absurd_counts_are_refused(up: Up, backbone: Backbone, count: int):
    assert Firewall().problem(replace(up, samples=Count(count)), backbone) == f"it claims {count:,} samples"


@pytest.mark.parametrize("firewall", [Firewall(), Firewall(enabled=False)])
def test_models_of_another_network_are_refused_even_where_it_is_switched_off(
    up: Up, backbone: Backbone, firewall: Firewall
):
    def problem(other: Layout) -> str | None:
        return firewall.problem(replace(up, model=ModelState(other, up.model.flat)), backbone)

    layout = backbone.layout
    assert problem(layout) is None
    renamed = replace(layout, names=("other", *layout.names[1:]))
    assert problem(renamed) == "its model is of another network: 1 entry is missing, 0.weight first"
    turned = Layout(layout.names[::-1], layout.shapes[::-1], layout.trainable)
    assert problem(turned) == "its model is of another network: its entries are in another order"


def measures(**norms: float) -> dict[str, dict[str, float]]:
    return {name: {UPDATE: norm, SAMPLES: 10} for name, norm in norms.items()}


def model_of(length: float, layout: Layout) -> ModelState:
    """A model whose weights have this length; its statistics are long."""
    flat = torch.full((layout.size,), 100.0)
    flat[: layout.trainable_size] = length / layout.trainable_size**0.5
    return ModelState(layout, flat)


def test_an_update_longer_than_half_as_much_again_as_the_median_is_drawn_back(layout: Layout):
    nothing = model_of(0.0, layout)
    assert Firewall().excess(measures(a=1.0, b=1.2, c=0.8, e=1.1, d=100.0), nothing) == {
        "d": {UPDATE: pytest.approx(0.0165**2)}
    }
    assert Firewall().excess(measures(a=1.0, b=1.2, c=0.8, e=1.1, d=1.6), nothing) == {}
    assert Firewall(norm_multiple=1.2).excess(measures(a=1.0, b=1.2, c=0.8, e=1.1, d=1.6), nothing).keys() == {"d"}
    assert Firewall().outliers(measures(a=1.0, b=1.2, c=0.8, d=100.0)) == {}


def test_nobody_gains_by_going_beyond_the_bound(layout: Layout):
    """What is left of a step is longest at the bound, and falls from there on without a gap."""

    def left(length: float, kind: str = UPDATE, firewall: Firewall = BELIEVING) -> float:
        usual = {name: {kind: 1.0} for name in "abce"}
        found = firewall.excess({**usual, "d": {kind: length}}, model_of(0.0, layout))
        return length * found.get("d", {}).get(kind, 1.0)

    assert [left(length) for length in (1.4, 1.5, 1.6, 3.0, 15.0)] == pytest.approx([1.4, 1.5, 1.40625, 0.75, 0.15])
    assert left(3.0, GRADIENT) == pytest.approx(0.75)
    assert left(18.0, STATISTICS) == pytest.approx(2.0)  # images of a client may well be unusual
    close = [left(length, firewall=Firewall()) for length in (1.2, 1.25, 1.25 + 1e-9, 2.5)]  # where all are alike
    assert close == pytest.approx([1.2, 1.25, 1.25, 0.625])
    assert left(2.5, GRADIENT, Firewall()) == pytest.approx(0.625)
    assert left(18.0, STATISTICS, Firewall()) == pytest.approx(2.0)


def test_a_length_beyond_all_measure_is_refused_even_where_the_median_is_not_finite_either():
    found = Firewall().outliers(measures(a=1.0, b=math.inf))
    assert list(found) == ["b"]
    assert "too large" in found["b"]


def test_samples_out_of_proportion_count_for_three_times_the_median(layout: Layout):
    usual = measures(a=1.0, b=1.0, c=1.0, e=1.0)
    found = BELIEVING.excess({**usual, "d": {UPDATE: 1.0, SAMPLES: 900}}, model_of(1.0, layout))
    assert found == {"d": {SAMPLES: pytest.approx(30 / 900)}}
    assert Count(900).drawn_back(model_of(1.0, layout), found["d"]) == Count(30)
    assert BELIEVING.excess({**usual, "d": {UPDATE: 1.0, SAMPLES: 30}}, model_of(1.0, layout)) == {}


def test_nobody_is_believed_to_have_far_more_samples_than_others_who_all_have_the_same(layout: Layout):
    def counted(*counts: int) -> dict[str, dict[str, float]]:
        """By client, the factors for such samples, and steps as long as those allow by their root."""
        usual = statistics.median(counts)
        round_ = {f"{k}": {SAMPLES: n, UPDATE: math.sqrt(max(n / usual, 1.0))} for k, n in enumerate(counts)}
        return Firewall().excess(round_, model_of(0.0, layout))

    assert counted(100, 100, 100, 100, 110) == {}
    found = counted(100, 100, 100, 100, 300)
    assert found == {"4": {SAMPLES: pytest.approx(110 / 300), UPDATE: pytest.approx(1.25**2 * 1.1 / 3)}}
    assert counted(20, 50, 100, 200, 300) == {}  # where all differ it is the setting that binds
    assert counted(20, 50, 100, 200, 400)["4"][SAMPLES] == pytest.approx(300 / 400)


def test_what_is_credible_follows_from_how_far_values_differ():
    assert credible([144.0] * 10, 3.0) == 1.0
    source = random.Random(1)
    spread = [math.exp(source.gauss(3.5, 0.2)) for _ in range(1001)]
    assert credible(spread, 3.0) == pytest.approx(math.exp(3 * 0.2), rel=0.05)
    assert credible([each * 1e6 for each in spread], 3.0) == pytest.approx(credible(spread, 3.0))  # in any unit
    assert credible([1.0, 2.0, 3.0, 4.0], 3.0) == math.inf  # among so few nobody can say
    assert credible([1.0, 1.0, 1.0, 1.0, 1.0], math.inf) == math.inf
    assert math.isfinite(credible([1e-300, 1e-200, 1.0, 1e200, 1e300], 3.0))


@pytest.mark.parametrize("lie", [1.05, 3.0, 1e9])
def test_liars_hardly_widen_what_is_credible(lie: float):
    equal = [100.0] * 10
    assert credible([*equal[1:], 100 * lie], 3.0) == 1.0
    assert credible([*equal[3:], *[100 * lie] * 3], 3.0) == 1.0  # a third that agree with each other
    source = random.Random(2)
    about = sorted(100 * math.exp(source.gauss(0, 0.05)) for _ in range(10))
    honest = credible(about, 3.0)
    assert 1.1 < honest < 1.3
    assert credible([*about[:5], *about[6:], 100 * lie], 3.0) < 1.3
    assert credible([*about[:4], *about[7:], *[100 * lie] * 3], 3.0) < 1.6


def test_who_goes_against_the_others_has_no_more_weight_or_length_than_with_the_median_of_samples(layout: Layout):
    usual, nothing = measures(a=1.0, b=1.0, c=1.0, e=1.0), model_of(0.0, layout)

    def found(against: set[str], length: float, samples: int, firewall: Firewall | None = None) -> dict[str, float]:
        both = {**usual, "d": {UPDATE: length, SAMPLES: samples}}
        excess = (firewall or BELIEVING).excess(both, nothing, against)
        assert excess.keys() <= {"d"}
        return excess.get("d", {})

    assert found({"a", "b"}, 2.0, 20) == {}
    allowed = 1.5 * math.sqrt(1.25)
    assert found({"d"}, 2.0, 20) == {SAMPLES: pytest.approx(12.5 / 20), UPDATE: pytest.approx((allowed / 2) ** 2)}
    assert found({"d"}, 1.6, 12) == {}  # about the median: 1.5 sqrt(1.2)
    assert found({"d"}, 1.0, 900) == {SAMPLES: pytest.approx(12.5 / 900)}
    assert found({"d"}, 1.0, 20, Firewall(samples_multiple=1.1)) == {SAMPLES: pytest.approx(11 / 20)}


def test_equal_counts_are_weighed_alike_whoever_goes_against_whom(layout: Layout):
    usual, nothing = measures(a=1.0, b=1.2, c=0.8, e=1.1, d=100.0), model_of(0.0, layout)
    assert Firewall().excess(usual, nothing, set(usual)) == Firewall().excess(usual, nothing)


def test_among_few_clients_only_ten_times_the_median_is_too_much(layout: Layout):
    nothing = model_of(0.0, layout)
    assert Firewall().excess(measures(a=1.0, b=1.0, c=9.0), nothing) == {}
    assert Firewall().excess(measures(a=1.0, b=1.0, c=20.0), nothing) == {"c": {UPDATE: pytest.approx(0.25)}}


def test_who_has_more_samples_may_go_farther_but_not_by_any_claim(layout: Layout):
    usual, nothing = measures(a=1.0, b=1.0, c=1.0, e=1.0), model_of(0.0, layout)
    assert BELIEVING.excess({**usual, "d": {UPDATE: 2.1, SAMPLES: 20}}, nothing) == {}  # up to 1.5 sqrt(2)
    assert BELIEVING.excess({**usual, "d": {UPDATE: 2.2, SAMPLES: 20}}, nothing).keys() == {"d"}
    claimed = BELIEVING.excess({**usual, "d": {UPDATE: 10.0, SAMPLES: 9000}}, nothing)
    assert claimed["d"][UPDATE] == pytest.approx((1.5 * math.sqrt(3) / 10) ** 2)


def test_what_cannot_be_drawn_back_is_refused_far_above_the_median():
    def voices(**values: float) -> dict[str, dict[str, float]]:
        return {name: {"loudness": value} for name, value in values.items()}

    assert Firewall().outliers(voices(a=1.0, b=1.2, c=0.9, d=100.0)) == {
        "d": "its loudness is 90.9 times the round's median"
    }
    assert Firewall().outliers(voices(a=1.0, b=1.2, c=0.9, d=9.0)) == {}


def test_nobody_is_out_of_proportion_where_there_is_nothing_to_compare(layout: Layout):
    nothing = model_of(0.0, layout)
    for each in ({}, measures(a=5.0), measures(a=0.0, b=0.0)):
        assert Firewall().outliers(each) == {}
        assert Firewall().excess(each, nothing) == {}


def test_weights_and_statistics_are_drawn_back_apart(up: Up, layout: Layout):
    start = ModelState(layout, up.model.flat - 2.0)
    weights = slice(layout.trainable_size)
    shorter = up.model.drawn_back(start, {UPDATE: 0.25})
    torch.testing.assert_close(shorter.flat[weights], start.flat[weights] + 0.5)
    assert torch.equal(shorter.flat[weights.stop :], up.model.flat[weights.stop :])
    calmer = up.model.drawn_back(start, {STATISTICS: 0.5})
    assert torch.equal(calmer.flat[weights], up.model.flat[weights])
    torch.testing.assert_close(calmer.flat[weights.stop :], start.flat[weights.stop :] + 1.0)


def test_variances_that_no_training_comes_to_are_refused(up: Up, backbone: Backbone, layout: Layout):
    def with_variance(value: float) -> Up:
        flat = up.model.flat.clone()
        layout.views(flat)["1.running_var"][2] = value
        return replace(up, model=ModelState(layout, flat))

    sent = up.model
    assert Firewall().problem(with_variance(-1e-6), backbone, model=sent) == "1.running_var holds variances below zero"
    assert Firewall().problem(with_variance(0.0), backbone, model=sent) is None  # a channel that is never active
    assert Firewall().problem(with_variance(150.0), backbone, model=sent) is None
    assert "far above" in (Firewall().problem(with_variance(1e5), backbone, model=sent) or "")
    assert Firewall(enabled=False).problem(with_variance(-1.0), backbone, model=sent) is None


def test_a_measure_is_the_distance_from_the_model_sent(up: Up):
    start = ModelState(up.model.layout, up.model.flat - 2.0)
    found = measured(up, start)
    weights = start.layout.trainable_size
    assert found == {
        UPDATE: pytest.approx(2 * weights**0.5, rel=1e-5),
        SAMPLES: 5,
    }


def test_switched_off_it_lets_values_pass(up: Up, backbone: Backbone, layout: Layout):
    off = Firewall(enabled=False)
    assert off.problem(replace(up, samples=Count(-1)), backbone) is None
    assert off.outliers(measures(a=1.0, b=1.0, c=math.inf)) == {}
    assert off.excess(measures(a=1.0, b=1.0, c=1e9), model_of(1.0, layout)) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"norm_multiple": 1.0},
        {"samples_multiple": 0.5},
        {"max_samples": 0},
        *({name: math.nan} for name in ("norm_multiple", "samples_multiple", "rows_multiple")),
    ],
)
def test_impossible_bounds_are_refused(options):
    with pytest.raises(ValueError, match=r"must be (above|at least) 1"):
        Firewall(**options)


def test_a_spool_gives_back_what_it_was_given_from_memory_and_from_disk(up: Up, layout: Layout, tmp_path: Path):
    ups = {
        f"client {index}": replace(up, model=ModelState(layout, up.model.flat + index), samples=Count(1 + index))
        for index in range(4)
    }
    room = 2 * sum((4 * layout.size, 8, 8))
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "0.safetensors").write_bytes(b"of an earlier round that was cut off")
    with spool(layout, folder, memory=room) as kept:
        for name, message in ups.items():
            kept.put(name, message)
        assert len(list(folder.iterdir())) == 2
        for name in reversed(ups):
            again = kept.take(name)
            assert torch.equal(again.model.flat, ups[name].model.flat)
            assert again.samples == ups[name].samples
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_a_message_is_given_out_once(up: Up, layout: Layout, tmp_path: Path):
    kept = Spool(layout, tmp_path)
    kept.put("ann", up)
    kept.take("ann")
    with pytest.raises(KeyError):
        kept.take("ann")


def test_a_spool_is_gone_after_an_error(layout: Layout, tmp_path: Path):
    with pytest.raises(RuntimeError, match="in the middle"), spool(layout, tmp_path / "scratch"):
        raise RuntimeError("in the middle")
    assert not (tmp_path / "scratch").exists()


def test_numbers_are_finite_even_where_their_sum_is_not():
    assert all_finite(torch.full((4,), 3e38))
    assert all_finite(torch.empty(0))
    for bad in (float("nan"), float("inf"), -float("inf")):
        values = torch.full((4,), 3e38)
        values[2] = bad
        assert not all_finite(values)
    assert not all_finite(torch.tensor([float("inf"), -float("inf")]))


def test_a_small_part_of_the_models_length_is_never_too_long(layout: Layout):
    """New FedFace clients begin at their own mean and hardly move; those that return have been spread out."""
    returning = measures(a=0.001, b=0.001, c=0.001, e=0.001, d=0.09)
    assert list(Firewall().excess(returning, model_of(1.6, layout))) == ["d"]
    assert Firewall().excess(returning, model_of(2.0, layout)) == {}
    assert list(Firewall(norm_floor=0.0).excess(returning, model_of(2.0, layout))) == ["d"]
    with pytest.raises(ValueError, match="norm_floor is 1"):
        Firewall(norm_floor=1.0)
