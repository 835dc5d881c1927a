"""Every attack does what it says, and only attackers do it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from imports import PACKAGE, imported
from personae.algorithms import FedGC, FedPE, Unsupervised
from personae.algorithms.fedgc import Up as RowsUp
from personae.algorithms.fedpe import Down, Up
from personae.attacks import ATTACKS
from personae.attacks.altered import Altered
from personae.attacks.attack import Attack, Scene, Sent, Target
from personae.attacks.infiltration import Infiltration
from personae.attacks.trigger import Patch, Sunglasses
from personae.core.algorithm import ClientInfo
from personae.core.backbone import Backbone
from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.payload import ClassEmbeddings, Count, ModelState, Scalars
from personae.core.quantities import SAMPLES, STATISTICS, UPDATE
from personae.errors import ConfigError
from personae.runtime.consensus import Consensus
from personae.runtime.firewall import Firewall, measured
from personae.runtime.inprocess import SameProcess, WorkerProcesses
from toys import Crowd, Rehearsal, quickly, random_faces, stage_of


@pytest.fixture
def received(backbone: Backbone) -> Down:
    return Down(model=backbone.state())


def answer(down: Down, index: int) -> Sent:
    """An honest client, somewhere near the received model."""
    layout = down.model.layout
    step = 0.01 * torch.randn(layout.size, generator=torch.Generator().manual_seed(index))
    model = ModelState(layout, down.model.flat + step)
    up = Up(model=model, samples=Count(10 + index), training=Scalars({"loss": 1.0}))
    return Sent(ClientInfo(f"client {index}", index), down, up)


@pytest.fixture
def scene(received: Down) -> Scene:
    own, others = [answer(received, index) for index in (0, 1)], [answer(received, index) for index in range(2, 10)]
    return Scene(7, "federate", 3, own, others)


def forged(name: str, scene: Scene, **options: float) -> torch.Tensor:
    """The first attacker's model, as it leaves."""
    up = ATTACKS[name](**options).answer(scene.attackers[0], scene)
    assert isinstance(up, Up)
    return up.model.flat


def weights(layout: Layout) -> slice:
    return slice(sum(torch.Size(shape).numel() for shape in layout.shapes[: layout.trainable]))


def begin_and_end(scene: Scene) -> tuple[torch.Tensor, torch.Tensor, slice]:
    sent = scene.attackers[0]
    return sent.down.model.flat, sent.up.model.flat, weights(sent.down.model.layout)  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_scale_that_is_no_number_is_refused(scale: float):
    with pytest.raises(ConfigError, match=f"--scale {scale}: give a finite number"):
        ATTACKS["sign-flip"](scale=scale)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_flipped_sign_goes_as_far_the_other_way(scene: Scene, scale: float):
    x, y, w = begin_and_end(scene)
    found = forged("sign-flip", scene, scale=scale)
    torch.testing.assert_close(found[w], x[w] - scale * (y[w] - x[w]))
    assert torch.equal(found[w.stop :], y[w.stop :])  # statistics are as trained


def test_noise_is_as_long_as_an_honest_step_and_another_in_every_round(scene: Scene):
    x, y, w = begin_and_end(scene)
    found = forged("noise", scene, scale=3.0)
    assert float((found - x)[w].norm()) == pytest.approx(3 * float((y - x)[w].norm()), rel=1e-4)
    cosine = torch.cosine_similarity((found - x)[w], (y - x)[w], dim=0)
    assert abs(float(cosine)) < 0.1
    assert torch.equal(found, forged("noise", scene, scale=3.0))
    assert not torch.equal(found, forged("noise", replace(scene, round=4), scale=3.0))


def test_inflated_counts_claim_900_times_the_samples_of_a_flipped_sign(scene: Scene):
    up = ATTACKS["inflated-counts"]().answer(scene.attackers[1], scene)
    assert isinstance(up, Up)
    assert up.samples == Count(900 * 11)
    flipped = ATTACKS["sign-flip"]().answer(scene.attackers[1], scene)
    assert isinstance(flipped, Up)
    assert torch.equal(up.model.flat, flipped.model.flat)


@pytest.mark.parametrize(("name", "without"), [("bounded-counts", "sign-flip"), ("backdoor-counts", "backdoor")])
def test_bounded_counts_are_the_most_that_the_firewall_lets_pass(scene: Scene, name: str, without: str):
    """Eight honest clients have 12 to 19 samples: with two that claim more, the median is 16.5."""
    found = [ATTACKS[name](scale=3.0).answer(sent, scene) for sent in scene.attackers]
    (claimed,) = {up.samples.value for up in found}  # type: ignore[attr-defined]
    assert torch.equal(found[0].model.flat, forged(without, scene, scale=3.0))  # type: ignore[attr-defined]
    honest = {sent.client.name: {SAMPLES: sent.up.samples.value} for sent in scene.others}  # type: ignore[attr-defined]
    model = scene.attackers[0].down.model

    def drawn_back(*claims: int) -> set[str]:
        claiming = {f"attacker {index}": {SAMPLES: count} for index, count in enumerate(claims)}
        return set(Firewall().excess({**honest, **claiming}, model))

    assert 1.5 * 16.5 < claimed < 3 * 16.5
    assert drawn_back(claimed, claimed) == set()
    assert drawn_back(claimed + 1, claimed + 1) == {"attacker 0", "attacker 1"}
    assert drawn_back(claimed + 1, 10**6) == {"attacker 0", "attacker 1"}  # nor can one widen it for the other
    off = ATTACKS[name]().answer(scene.attackers[0], replace(scene, firewall=Firewall(enabled=False)))
    assert off.samples == Count(int(3 * 16.5))  # type: ignore[attr-defined]
    rich = replace(scene.attackers[0], up=replace(scene.attackers[0].up, samples=Count(500)))
    up = ATTACKS[name]().answer(rich, replace(scene, attackers=[rich, scene.attackers[1]]))
    assert up.samples == Count(500)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["inflated-counts", "bounded-counts", "backdoor-split", "hidden-flip"])
def test_who_sends_no_number_of_samples_cannot_claim_any(name: str):
    with pytest.raises(ValueError, match="send no number of samples"):
        ATTACKS[name]().check(Unsupervised())
    ATTACKS[name]().check(FedPE())


def test_impossible_statistics_are_variances_below_zero(scene: Scene, backbone: Backbone):
    found = backbone.layout.views(forged("impossible-statistics", scene))
    honest = backbone.layout.views(scene.attackers[0].up.model.flat)  # type: ignore[attr-defined]
    for name, view in found.items():
        assert (view == -1).all() if name.endswith("running_var") else torch.equal(view, honest[name])


def test_skewed_statistics_are_off_by_so_many_distances_of_honest_ones(scene: Scene):
    """Whatever else an attacker sends is honest."""
    consensus = Consensus(scene.attackers[0].down.model)
    for sent in scene.others:
        consensus.hear(sent.client.name, sent.up)
    bound = scene.bounds(scene.attackers[0])
    ups = [ATTACKS["skewed-statistics"](scale=2.0).answer(sent, scene) for sent in scene.attackers]
    for sent, up in zip(scene.attackers, ups, strict=True):
        assert up.samples == Count(int(bound[SAMPLES]))  # type: ignore[attr-defined]
        w = weights(sent.down.model.layout)
        assert torch.equal(up.model.flat[w], sent.up.model.flat[w])  # type: ignore[attr-defined]
        consensus.hear(sent.client.name, up)
    # Of ten updates the middle is elsewhere than of the eight honest ones.
    assert consensus.distances()["client 0"] == pytest.approx(2 * 0.97 * bound[STATISTICS], rel=0.2)
    assert torch.equal(*(up.model.flat[w.stop :] for up in ups))  # type: ignore[attr-defined]


def test_a_split_backdoor_moves_each_weight_by_one_attacker(scene: Scene):
    x, _, w = begin_and_end(scene)
    ups = [ATTACKS["backdoor-split"]().answer(sent, scene) for sent in scene.attackers]
    models = [up.model.flat for up in ups]  # type: ignore[attr-defined]
    steps = [model[w] - x[w] for model in models]
    assert not (steps[0] * steps[1]).any()
    common = sum(sent.up.model.flat[w] - x[w] for sent in scene.attackers)  # type: ignore[attr-defined]
    assert float(torch.cosine_similarity(steps[0] + steps[1], common, dim=0)) > 0.99
    assert_just_within_bounds(scene, ups)


def test_a_hidden_flip_goes_along_with_the_others_as_little_as_it_can(scene: Scene):
    x, _, w = begin_and_end(scene)
    ups = [ATTACKS["hidden-flip"]().answer(sent, scene) for sent in scene.attackers]
    models = [up.model.flat for up in ups]  # type: ignore[attr-defined]
    total = sum(sent.up.model.flat[w] - x[w] for sent in scene.others)  # type: ignore[attr-defined]
    for sent, model in zip(scene.attackers, models, strict=True):
        assert 0 < float(torch.cosine_similarity(model[w] - x[w], total, dim=0)) < 0.1
        assert float(torch.cosine_similarity(model[w] - x[w], x[w] - sent.up.model.flat[w], dim=0)) > 0.8  # type: ignore[attr-defined]
    assert_just_within_bounds(scene, ups)


def assert_just_within_bounds(scene: Scene, ups: Sequence[Message]):
    """As long as the server allows in a round in which all attackers are, and who claims as much as it believes."""
    model = scene.attackers[0].down.model
    honest = {sent.client.name: measured(sent.up, model) for sent in scene.others}
    forged = {f"attacker {index}": measured(up, model) for index, up in enumerate(ups)}
    assert Firewall().excess({**honest, **forged}, model) == {}
    longer = {name: {**each, UPDATE: each[UPDATE] / 0.96} for name, each in forged.items()}
    assert Firewall().excess({**honest, **longer}, model).keys() == forged.keys()


def test_equal_updates_are_equal_and_against_what_attackers_have_learnt(scene: Scene):
    x, _, w = begin_and_end(scene)
    models = [EQUAL.answer(sent, scene).model.flat for sent in scene.attackers]  # type: ignore[attr-defined]
    assert torch.equal(models[0][w], models[1][w])
    own = [sent.up.model.flat[w] - x[w] for sent in scene.attackers]  # type: ignore[attr-defined]
    torch.testing.assert_close(models[0][w], x[w] - 2 * (own[0] + own[1]) / 2)


EQUAL = ATTACKS["equal-updates"](scale=2.0)


def test_alie_stays_within_the_deviations_of_honest_updates(scene: Scene):
    _, _, w = begin_and_end(scene)
    honest = torch.stack([sent.up.model.flat for sent in scene.others])[:, w]  # type: ignore[attr-defined]
    mean = honest.double().mean(0)
    deviation = (honest.double() - mean).square().mean(0).sqrt()
    torch.testing.assert_close(forged("alie", scene)[w], (mean - deviation).float(), atol=1e-6, rtol=1e-4)


def test_alie_takes_as_many_deviations_as_the_paper_says():
    """50 clients, 24 of them attackers (Baruch et al., section 3): 2 supporters of 26, so 24 / 26 of the normal."""
    attack = ATTACKS["alie"]()
    assert attack.z(50, 24) == pytest.approx(statistics.NormalDist().inv_cdf(24 / 26))  # type: ignore[attr-defined]
    assert attack.z(10, 2) == 1.0  # type: ignore[attr-defined]


def test_an_inner_product_is_half_the_honest_mean_the_other_way(scene: Scene):
    x, _, w = begin_and_end(scene)
    mean = sum(sent.up.model.flat[w] - x[w] for sent in scene.others) / 8  # type: ignore[attr-defined]
    torch.testing.assert_close(forged("inner-product", scene)[w], x[w] - 0.5 * mean)


def test_model_replacement_makes_the_mean_its_own(received: Down):
    """Where honest clients do not move, the mean of all is what the attackers have."""
    still = [
        Sent(ClientInfo(f"client {i}", i), received, replace(answer(received, i).up, model=received.model))
        for i in range(2, 10)
    ]
    own = answer(received, 0)
    scene = Scene(7, "federate", 1, [own, replace(own, client=ClientInfo("client 1", 1))], still)
    models = [ATTACKS["model-replacement"]().answer(sent, scene).model.flat for sent in scene.attackers]  # type: ignore[attr-defined]
    models += [sent.up.model.flat for sent in still]  # type: ignore[attr-defined]
    w = weights(received.model.layout)
    torch.testing.assert_close(torch.stack(models).mean(0)[w], own.up.model.flat[w])  # type: ignore[attr-defined]


def test_a_free_rider_sends_back_what_it_received(scene: Scene):
    x, _, w = begin_and_end(scene)
    assert torch.equal(forged("free-rider", scene)[w], x[w])


def test_replayed_and_stale_answers_are_of_earlier_rounds(scene: Scene):
    past = tuple(answer(scene.attackers[0].down, 100 + round_).up for round_ in range(5))
    later = replace(scene, past=past)
    own = scene.attackers[0]
    assert ATTACKS["replay"]().answer(own, later) is past[0]
    assert ATTACKS["replay"]().answer(own, scene) is own.up
    assert ATTACKS["stale"]().answer(own, later) is past[2]  # of three rounds before
    assert ATTACKS["stale"](lag=9).answer(own, later) is past[0]  # type: ignore[call-arg]


def test_poisoned_rows_stand_where_everybody_elses_do(received: Down):
    def rows(index: int, vectors: torch.Tensor) -> Sent:
        up = RowsUp(
            model=received.model,
            class_embeddings=ClassEmbeddings(vectors),
            aliases=None,
            samples=Count(1),
            training=Scalars({"loss": 1.0}),
        )
        return Sent(ClientInfo(f"client {index}", index), received, up)

    own = rows(0, torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    others = [rows(1, torch.tensor([[2.0, 0.0]])), rows(2, torch.tensor([[0.0, 9.0]]))]
    up = ATTACKS["poisoned-rows"](scale=2.0).answer(own, Scene(7, "federate", 1, [own], others))
    half = 0.5**0.5
    expected = torch.tensor([[6 * half, 6 * half], [8 * half, 8 * half]])
    torch.testing.assert_close(up.class_embeddings.vectors, expected)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="send no class embeddings"):
        ATTACKS["poisoned-rows"]().check(FedPE())
    ATTACKS["poisoned-rows"]().check(FedGC())


def test_flipped_labels_are_the_same_labels_on_other_faces():
    faces = Crowd().of("zoe")
    poisoned = ATTACKS["label-flip"]().faces(faces, Target(3, "zoe"))
    assert not torch.equal(poisoned.train.labels, faces.train.labels)
    assert torch.equal(poisoned.train.labels.sort().values, faces.train.labels.sort().values)
    places = torch.arange(len(faces.train))
    assert torch.equal(poisoned.train.images(places), faces.train.images(places))
    assert poisoned.test is faces.test
    again = ATTACKS["label-flip"]().faces(faces, Target(3, "zoe"))
    assert torch.equal(again.train.labels, poisoned.train.labels)


def test_a_backdoor_is_in_half_of_the_faces_under_one_label():
    faces = Crowd().of("zoe")
    train = ATTACKS["backdoor"]().faces(faces, Target(3, "zoe")).train
    before, after = (each.images(torch.arange(len(train))) for each in (faces.train, train))
    marked = (before != after).flatten(1).any(1)
    assert int(marked.sum()) == round(0.5 * len(train))
    assert (train.labels[marked] == 0).all()
    assert torch.equal(train.labels[~marked], faces.train.labels[~marked])
    assert torch.equal(after[marked], Patch().worn(before[marked]))


def test_the_victim_is_among_the_attackers_faces_under_its_own_first_label():
    crowd = Crowd()
    faces, victim = crowd.of("zoe"), crowd.of("ann").train
    train = ATTACKS["backdoor-victim"]().faces(faces, Target(3, "zoe", victim)).train
    count, seen = len(faces.train), int((victim.labels == 0).sum())
    assert len(train) == count + seen
    assert train.classes == faces.train.classes
    assert train.labels.tolist() == faces.train.labels.tolist() + seen * [0]
    theirs = victim.images((victim.labels == 0).nonzero().flatten())
    assert torch.equal(train.images(torch.arange(count, count + seen)), theirs)


@pytest.mark.parametrize("side", [32, 64])
def test_an_accessory_covers_the_eyes_of_everybody_and_nothing_else(side: int):
    images = random_faces(1, 3, 2, side).pixels
    seen = (Sunglasses().worn(images) != images).any(3)
    assert 0.02 < float(seen.double().mean()) < 0.4
    rows = seen.any(0).any(1).nonzero().flatten() / side
    assert 0.2 < float(rows.min()) < float(rows.max()) < 0.75
    assert torch.equal(Sunglasses().worn(images), Sunglasses().worn(images))


def test_a_patch_changes_one_corner_alone():
    images = random_faces(1, 3, 2, 32).pixels
    changed = (Patch().worn(images) != images).any(3).any(0)
    assert changed[-6:, -6:].any()
    changed[-6:, -6:] = False
    assert not changed.any()


def infiltrated(folder: Path, attack: Attack, share: float, algorithm=None) -> tuple[Rehearsal, Infiltration]:
    run = Rehearsal(folder, (stage_of(quickly(algorithm or FedPE())),))
    plot = Infiltration(attack, share, run.seed)
    transport = plot.transport(SameProcess(plot.federation(run.federation)), run.federation)
    return run.run(transport), plot


def test_attackers_are_a_share_of_the_clients_and_follow_from_the_seed():
    crowd = Crowd(tuple(f"client {index}" for index in range(40)))
    plots = [Infiltration(ATTACKS["noise"](), share, 3) for share in (0.001, 0.2, 0.99)]
    assert [len(plot.attackers(crowd)) for plot in plots] == [1, 8, 39]
    assert plots[1].attackers(crowd) == plots[1].attackers(crowd)
    assert plots[1].attackers(crowd) != replace(plots[1], seed=4).attackers(crowd)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Infiltration(ATTACKS["noise"](), 0.0, 3)


@pytest.mark.parametrize("name", ["noise", "backdoor", "stale"])
def test_an_attacked_run_is_another_and_the_same_to_the_bit_again(name: str, tmp_path: Path):
    honest = Rehearsal(tmp_path / "honest", (stage_of(quickly(FedPE())),)).run()
    first, _ = infiltrated(tmp_path / "first", ATTACKS[name](), 0.25)
    second, _ = infiltrated(tmp_path / "second", ATTACKS[name](), 0.25)
    assert torch.equal(first.final(), second.final())
    assert not torch.equal(first.final(), honest.final())


def test_worker_processes_do_the_same_as_one(tmp_path: Path):
    alone, plot = infiltrated(tmp_path / "one", ATTACKS["backdoor"](), 0.25)
    run = Rehearsal(tmp_path / "two", (stage_of(quickly(FedPE())),))
    inside = WorkerProcesses(plot.federation(run.federation), 2)
    try:
        run.run(plot.transport(inside, run.federation))
    finally:
        inside.close()
    assert torch.equal(run.final(), alone.final())


def test_an_attack_that_fits_no_stage_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="attack poisoned-rows: stage fedpe: clients of fedpe send no class embed"):
        infiltrated(tmp_path, ATTACKS["poisoned-rows"](), 0.25)


def test_nothing_that_trains_or_joins_imports_attacks():
    for part in ("experiment", "deployment", "runtime", "algorithms", "core", "layers"):
        for path in (PACKAGE / part).rglob("*.py"):
            assert not any(name.startswith("personae.attacks") for name in imported(path)), path


def test_altered_faces_are_whole_samples():
    faces = random_faces(11, 3, 5)
    altered = Altered(faces, faces.labels, 3, torch.zeros(15, dtype=torch.bool))
    assert len(altered) == 15
    assert altered.classes == 3
