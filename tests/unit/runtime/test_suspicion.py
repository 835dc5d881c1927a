"""Who is suspected, and that honest clients are not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import FedGC, FedPE
from personae.algorithms.fedpe import Up
from personae.attacks import ATTACKS
from personae.attacks.attack import Attack, Scene, Sent
from personae.attacks.infiltration import Infiltration
from personae.core.algorithm import ClientInfo, Server
from personae.core.backbone import Backbone
from personae.core.message import Message, ServerState
from personae.core.payload import Count, ModelState, Scalars
from personae.core.quantities import SAMPLES
from personae.errors import Diverged
from personae.runtime import round as rounds
from personae.runtime.firewall import Firewall
from personae.runtime.inprocess import SameProcess
from personae.runtime.knowledge import suspect, suspected, unlearnt
from personae.runtime.proof import has_collapsed, separation
from personae.runtime.suspicion import WIDTH, Fingerprints, Signs, by_itself, draw, harms, ruling, signs_of
from toys import Crowd, Rehearsal, cut_off, quickly, random_faces, stage_of

NAMES = tuple("abcdefghij")


def directions(common: float = 0.0, seed: int = 0) -> dict[str, torch.Tensor]:
    """Ten honest clients: directions at random, with something in common."""
    source = torch.Generator().manual_seed(seed)
    shared = torch.randn(WIDTH, generator=source)
    return {name: F.normalize(torch.randn(WIDTH, generator=source) + common * shared, dim=0) for name in NAMES}


def suspicious(signs: Mapping[str, Signs]) -> set[str]:
    """Who has a score after a first round with these signs."""
    return set(ruling({}, signs, 3.0).scores)


@pytest.mark.parametrize("common", [0.0, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_honest_clients_have_no_strong_signs_however_much_they_agree(common: float, seed: int):
    assert not suspicious(signs_of(directions(common, seed)))


def test_two_that_want_the_same_are_alike():
    prints = directions(0.3)
    for name in ("c", "h"):
        prints[name] = F.normalize(prints[name] + 0.8 * prints["a"].flip(0), dim=0)
    found = signs_of(prints)
    assert suspicious(found) == {"c", "h"}
    assert found["c"].whom == "h"
    assert str(found["c"]) == "its update is far more like that of h than updates of a round are"


def test_who_goes_the_other_way_is_against():
    prints = directions(0.5)
    prints["e"] = -prints["e"]
    found = signs_of(prints)
    assert suspicious(found) == {"e"}
    assert str(found["e"]) == "its update goes against those of the others"


@pytest.mark.parametrize("common", [0.0, 0.3, 1.0])
def test_the_ruling_names_everybody_whose_update_goes_against_the_sum_of_the_others(common: float):
    """Also those whose signs are too weak for a score, and whatever they claim."""
    prints = directions(common)
    prints["d"] = -prints["d"]
    found = ruling({}, signs_of(prints), 3.0).against
    sums = {name: sum(prints[other] for other in NAMES if other != name) for name in NAMES}
    assert found == {name for name in NAMES if float(prints[name] @ sums[name]) < 0}
    assert "d" in found or not common


def test_who_has_nothing_to_do_with_the_others_is_not_against_them():
    """However close the others are to each other."""
    prints = directions(10.0)
    rest = F.normalize(torch.stack([each for name, each in prints.items() if name != "e"]).sum(0), dim=0)
    apart = F.normalize(prints["e"] - (prints["e"] @ rest) * rest, dim=0)
    prints["e"] = F.normalize(apart - 0.02 * rest, dim=0)
    found = signs_of(prints)
    assert found["e"].against == pytest.approx(1.0, rel=0.01)  # one deviation below zero, and fifty below the others
    assert suspicious(found) == set()


@pytest.mark.parametrize("seed", range(3))
def test_where_nobody_agrees_going_against_the_others_proves_nothing_by_itself(seed: int):
    """Unrelated directions, and one that goes against the sum of the others as honest clients sometimes do."""
    prints = directions(seed=seed)
    rest = torch.stack([each for name, each in prints.items() if name != "e"]).sum(0)
    prints["e"] = F.normalize(prints["e"] - 0.2 * F.normalize(rest, dim=0), dim=0)
    found = signs_of(prints)
    assert found["e"].against > 8
    assert ruling({}, found, 3.0).scores == {}
    assert ruling({"e": 1.0}, found, 3.0).scores["e"] > 5  # of somebody who was suspected before it is another sign


def test_who_is_drawn_back_by_far_is_long():
    found = signs_of(directions(0.3), {"b": 5.5, "c": 2.0})
    assert suspicious(found) == {"b"}
    assert str(found["b"]) == "its updates are many times as long as those of the others"
    longer = ruling({}, found, 3.0).scores
    assert longer == {"b": 1.5}


def test_who_was_too_long_once_is_drawn_back_and_no_suspect():
    usual = {name: strong(1.0) for name in NAMES}
    exploded = Signs(1.0, "x", 0.0, 1000.0)
    once = ruling({}, {**usual, "a": exploded}, 3.0)
    assert once.scores == {"a": 3.0}
    assert once.suspects == {}
    assert ruling(once.scores, usual, 3.0).scores == {"a": 2.0}
    assert list(ruling(once.scores, {**usual, "a": exploded}, 3.0).suspects) == ["a"]


def test_whoever_harms_rendered_faces_twice_is_a_suspect():
    found = signs_of(directions(0.3), harms={"b": 4.5, "c": 1.9})
    assert suspicious(found) == {"b"}
    assert str(found["b"]) == "its updates by themselves tell rendered faces apart far less well than others"
    once = ruling({}, signs_of(directions(0.3), harms={"b": 100.0}), 3.0)
    assert once.scores == {"b": 3.0}
    assert once.suspects == {}
    assert list(ruling(once.scores, found, 3.0).suspects) == ["b"]
    assert ruling(once.scores, signs_of(directions(0.3)), 3.0).scores == {"b": 2.0}


def test_harm_is_measured_by_what_is_usual():
    usual = {"a": 0.80, "b": 0.82, "c": 0.84, "d": 0.86, "e": 0.88}
    found = harms({**usual, "x": 0.70, "y": 0.95}, usual)
    assert found["x"] == pytest.approx(0.14 / (1.4826 * 0.02))
    assert found["a"] == pytest.approx(0.04 / (1.4826 * 0.02))
    assert [found[name] for name in ("c", "d", "e", "y")] == [0.0] * 4  # to be better than others is no sign
    close = dict.fromkeys(usual, 0.84)
    assert harms({**close, "x": 0.83}, close)["x"] == pytest.approx(1.0)  # a hundredth is chance
    assert harms({name: value - 0.25 for name, value in usual.items()}, usual) == {}  # nobody can tell anything yet
    assert harms({}, []) == {}


def test_who_is_tried_follows_from_the_updates():
    prints = directions()
    assert draw(prints, 10) == list(NAMES)
    few = draw(prints, 8)
    assert few == draw(prints, 8)
    assert len(set(few)) == 8
    assert few == sorted(few)
    left = {name for seed in range(20) for name in set(NAMES) - set(draw(directions(seed=seed), 8))}
    assert len(left) > 5  # not always the same
    assert draw({name: prints[name] for name in "abcdefg"}, 8) == []
    assert draw(prints, 0) == []


def test_an_update_by_itself_is_the_model_with_it_alone(backbone: Backbone):
    model = backbone.state()
    changed = ModelState(model.layout, model.flat + 1)
    update = Up(model=changed, samples=Count(1), training=Scalars({"loss": 1.0}))
    assert torch.equal(by_itself(update, model).flat, changed.flat)


def test_among_few_nobody_is_judged():
    assert signs_of({name: torch.ones(WIDTH) for name in "abcd"}) == {}


def strong(strength: float) -> Signs:
    return Signs(strength, "x", 0.0)


def test_scores_add_up_over_rounds_and_fall_again():
    usual = {name: strong(1.0) for name in NAMES}
    alike = {**usual, "a": Signs(6.0, "b", 0.0), "b": Signs(6.0, "a", 0.0)}
    first = ruling({}, alike, 3.0)
    assert first.scores == {"a": 2.0, "b": 2.0}
    assert first.suspects == {}
    second = ruling(first.scores, alike, 3.0)
    assert second.scores == {"a": 4.0, "b": 4.0}
    assert list(second.suspects) == ["a", "b"]
    third = ruling(second.scores, {**alike, "a": Signs(2.5, "b", 0.0), "b": Signs(2.5, "a", 0.0)}, 3.0)
    assert third.scores == {"a": 3.0, "b": 3.0}
    assert third.suspects == {}
    assert ruling(third.scores, usual, 3.0).scores == {"a": 2.0, "b": 2.0}
    assert ruling({"away": 2.0}, usual, 3.0).scores == {"away": 2.0}  # whoever was not asked keeps its score
    assert ruling({}, {**usual, "a": strong(1e9)}, 3.0).scores == {"a": 12.0}  # so that nobody is lost for ever


def test_likeness_with_one_and_then_with_another_does_not_add_up():
    usual = {name: strong(1.0) for name in NAMES}
    first = ruling({}, {**usual, "a": Signs(6.0, "b", 0.0), "b": Signs(6.0, "a", 0.0)}, 3.0)
    second = ruling(first.scores, {**usual, "a": Signs(6.5, "c", 0.0), "c": Signs(6.5, "a", 0.0)}, 3.0)
    assert second.scores == {"a": 2.5, "b": 1.0, "c": 2.5}
    assert second.suspects == {}
    against = ruling(second.scores, {**usual, "a": Signs(1.0, "c", 6.0)}, 3.0)  # a sign that takes no second client
    assert against.scores == {"a": 6.5, "c": 1.5}


def test_where_a_third_would_be_suspects_the_round_is_made_of_groups():
    groups = {name: strong(20.0 if name in "abcd" else 1.0) for name in NAMES}
    assert ruling({}, groups, 3.0).suspects == {}
    few = {name: strong(20.0 if name in "abc" else 1.0) for name in NAMES}
    assert list(ruling({}, few, 3.0).suspects) == ["a", "b", "c"]
    assert ruling({}, few, math.inf).suspects == {}


def test_a_fingerprint_keeps_cosines_of_weights_and_no_statistics(backbone: Backbone):
    model, source = backbone.state(), torch.Generator().manual_seed(1)
    steps = [torch.randn(len(model.flat), generator=source) for _ in range(2)]
    steps[1] = steps[1] + 0.5 * steps[0]
    weights = slice(model.layout.trainable_size)

    def update(step: torch.Tensor) -> Up:
        changed = ModelState(model.layout, model.flat + step)
        return Up(model=changed, samples=Count(1), training=Scalars({"loss": 1.0}))

    prints = [Fingerprints(model).of(update(step)) for step in steps]
    assert prints[0] is not None
    assert prints[1] is not None
    exact = torch.cosine_similarity(steps[0][weights], steps[1][weights], dim=0)
    assert float(prints[0] @ prints[1]) == pytest.approx(float(exact), abs=0.03)
    steps[0][weights.stop :] *= 1000
    again = Fingerprints(model).of(update(steps[0]))
    assert again is not None
    torch.testing.assert_close(again, prints[0], atol=1e-4, rtol=1e-3)
    assert Fingerprints(model).of(update(torch.zeros_like(model.flat))) is None


def test_scores_are_in_the_servers_memory_and_forgotten_with_a_client(backbone: Backbone):
    clients = [ClientInfo(name, index) for index, name in enumerate(NAMES)]
    state = ServerState(model=backbone.state())
    assert suspect(state, {}, clients) is state
    kept = suspect(state, {"b": 2.5}, clients)
    assert suspected(kept, clients) == {"b": 2.5}
    assert suspected(unlearnt(kept, 1), clients) == {}
    assert suspect(kept, {}, clients).memory == {}


CROWD = Crowd(tuple(f"client-{index}" for index in range(10)))


def attacked(
    folder: Path, name: str, scale: float, share: float = 0.2, rounds: int = 3, algorithm=None, **options
) -> Rehearsal:
    run = Rehearsal(folder, (stage_of(quickly(algorithm or FedPE()), rounds=rounds),), holdings=CROWD, **options)
    plot = Infiltration(ATTACKS[name](scale=scale), share, run.seed, run.firewall)
    return run.run(plot.transport(SameProcess(plot.federation(run.federation)), run.federation))


def suspicions(run: Rehearsal) -> list[dict[str, Any]]:
    return [event for event in run.notebook.books["metrics"] if event["event"] == "suspicion"]


@pytest.mark.parametrize("name", [name for name in ATTACKS.own if name != "poisoned-rows"])
def test_an_attacked_run_goes_on_to_its_end(name: str, tmp_path: Path):
    run = attacked(tmp_path, name, 1000.0, share=0.3)
    assert len(run.notebook.rounds()) == 3
    assert bool(run.final().isfinite().all())


@pytest.mark.parametrize("name", ["sign-flip", "poisoned-rows", "equal-updates", "backdoor"])
def test_no_honest_client_is_left_out_of_an_attacked_run_of_fedgc(name: str, tmp_path: Path):
    run = attacked(tmp_path, name, 8.0, algorithm=FedGC())
    attackers = set(Infiltration(ATTACKS[name](), 0.2, run.seed).attackers(CROWD))
    rounds_ = run.notebook.rounds()
    assert len(rounds_) == 3
    assert all(set(event["rejected"]) <= attackers for event in rounds_)


def test_colluders_with_equal_updates_are_left_out_at_once(tmp_path: Path):
    run = attacked(tmp_path, "equal-updates", 1.0, rounds=1)
    (event,) = suspicions(run)
    attackers = Infiltration(ATTACKS["equal-updates"](), 0.2, run.seed).attackers(CROWD)
    assert set(event["left_out"]) == set(attackers)
    assert set(run.notebook.rounds()[0]["rejected"]) == set(attackers)
    assert min(event["scores"][name] for name in attackers) > 3


def test_a_claim_of_many_samples_is_of_no_use_to_who_goes_against_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The round draws it back for those whom the ruling names, and for nobody else."""
    attackers = Infiltration(ATTACKS["bounded-counts"](), 0.2, 5).attackers(CROWD)
    judged = Firewall.ruling
    for against in (frozenset[str](), frozenset(attackers[:1])):
        ruled = partial(replace, against=against)
        monkeypatch.setattr(Firewall, "ruling", lambda *given, ruled=ruled: ruled(judged(*given)))
        believing = Firewall(credible=math.inf)
        run = attacked(tmp_path / str(len(against)), "bounded-counts", 1.0, rounds=1, firewall=believing)
        assert attackers == Infiltration(ATTACKS["bounded-counts"](), 0.2, run.seed).attackers(CROWD)
        factors = [(name, each) for event in suspicions(run) for name, each in event["drawn_back"].items()]
        drawn_back = {name: each[SAMPLES] for name, each in factors if SAMPLES in each}
        assert drawn_back.keys() == against
        assert all(1.25 / 3 <= factor < 0.5 for factor in drawn_back.values())


def step_of(run: Rehearsal, weights: int) -> float:
    begin = run.federation.backbone().state().flat
    return float((run.final() - begin)[:weights].norm())


def test_the_record_has_the_model_that_would_have_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is that of a run without defences, and the run itself does not notice that it was made."""
    defended = attacked(tmp_path / "on", "equal-updates", 50.0, rounds=1)
    bare = attacked(tmp_path / "off", "equal-updates", 50.0, rounds=1, firewall=Firewall(enabled=False))
    (event,) = suspicions(defended)
    weights = defended.federation.backbone().layout.trainable_size
    assert event["merged"]["step"] == pytest.approx(step_of(defended, weights))
    assert event["otherwise"]["step"] == pytest.approx(step_of(bare, weights))
    assert event["otherwise"]["step"] > 2 * event["merged"]["step"]
    longer = attacked(tmp_path / "again", "label-flip", 50.0)
    assert all(event["otherwise"] for event in suspicions(longer) if event["drawn_back"])
    monkeypatch.setattr(rounds, "_aside", refuse)
    assert torch.equal(attacked(tmp_path / "without", "label-flip", 50.0).final(), longer.final())


def refuse(server: Server) -> Server:
    raise Diverged("there would be no model")


def test_an_attacked_run_that_was_cut_off_goes_on_with_the_same_scores(tmp_path: Path):
    def rehearsal(folder: Path) -> Rehearsal:
        return Rehearsal(folder, (stage_of(quickly(FedPE()), rounds=3),), holdings=CROWD)

    whole, half = rehearsal(tmp_path / "whole"), rehearsal(tmp_path / "half")
    plot = Infiltration(ATTACKS["equal-updates"](), 0.2, whole.seed)

    def way(run: Rehearsal):
        return plot.transport(SameProcess(plot.federation(run.federation)), run.federation)

    whole.run(way(whole))
    again = cut_off(half, 2, way(half))
    again.run(way(again))
    assert torch.equal(again.final(), whole.final())
    assert again.notebook.books["metrics"] == whole.notebook.books["metrics"]


def test_an_honest_crowd_is_left_alone(tmp_path: Path):
    same = replace(CROWD)
    run = Rehearsal(tmp_path / "on", (stage_of(quickly(FedPE()), rounds=3),), holdings=same).run()
    assert not any(event.get("left_out") for event in run.notebook.books["metrics"])


def test_a_model_that_tells_nobody_apart_any_more_is_taken_back(tmp_path: Path):
    """All weights gone to zero is finite, and of no use."""

    class Erasing(FedPE):
        name = "erasing"

        def merge(self, state, replies, server):
            merged = super().merge(state, replies, server)
            flat = merged.model.flat * (0.0 if server.round == 2 else 1.0)
            return replace(merged, model=ModelState(merged.model.layout, flat))

    run = Rehearsal(tmp_path, (stage_of(quickly(Erasing()), rounds=3),))
    replace(run.engine(), proof=random_faces(1, 6, 4)).run()
    warnings = [event for event in run.notebook.books["metrics"] if event["event"] == "warning"]
    undone = [event for event in warnings if "undone" in event["text"]]
    assert [event["round"] for event in undone] == [2]
    assert undone[0]["text"].endswith("updates of ann, bob, eve, zoe were in it")
    assert float(run.final().abs().max()) > 0


PROOF = random_faces(1, 12, 4)  # a network that is not trained yet tells these apart


def proven(run: Rehearsal, plot: Infiltration | None = None) -> Rehearsal:
    """The run to its end, by a server that has faces to try updates on."""
    inside = SameProcess(plot.federation(run.federation) if plot else run.federation)
    replace(run.engine(plot.transport(inside, run.federation) if plot else inside), proof=PROOF).run()
    return run


def crowded(folder: Path, **settings: Any) -> Rehearsal:
    recipe = (stage_of(quickly(FedPE()), rounds=3),)
    return Rehearsal(folder, recipe, holdings=CROWD, firewall=Firewall(**settings))


@dataclass(frozen=True, kw_only=True)
class Forgetting(Attack):
    """A step to a model that knows nothing."""

    name: ClassVar[str] = "forgetting"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        def back(name: str) -> torch.Tensor:
            vector = sent.vectors()[name]
            return -sent.begin(vector)[: vector.layout.trainable_size]

        return sent.moved(back)


def test_an_update_that_ruins_the_model_by_itself_is_tried_and_left_out(tmp_path: Path):
    plot = Infiltration(Forgetting(), 0.1, 5)
    found = {}
    for judged in (0, 10):
        run = crowded(tmp_path / str(judged), judged=judged, norm_floor=0.99, norm_multiple=1e9, credible=math.inf)
        events = suspicions(proven(run, plot))
        found[judged] = {name: reason for event in events for name, reason in event["left_out"].items()}
    (attacker,) = plot.attackers(CROWD)
    assert found[0] == {}
    assert found[10] == {attacker: "its updates by themselves tell rendered faces apart far less well than others"}


def test_trying_updates_changes_nothing_where_nobody_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried: list[tuple[str, ...]] = []

    def noted(separations: Mapping[str, float], usual: Sequence[str]) -> dict[str, float]:
        tried.append(tuple(separations))
        return harms(separations, usual)

    monkeypatch.setattr(rounds, "harms", noted)
    eight, none = (proven(crowded(tmp_path / str(judged), judged=judged, suspicion=math.inf)) for judged in (8, 0))
    assert [len(names) >= 8 for names in tried] == [True] * 3 + [False] * 3  # and suspects
    assert len(tried[0]) == 8
    assert torch.equal(eight.final(), none.final())


def test_separation_is_the_chance_that_one_person_is_more_alike_than_two():
    faces = random_faces(3, 5, 3)
    source = torch.Generator().manual_seed(1)
    vectors = F.normalize(torch.randn(15, 4, generator=source) + torch.eye(5, 4).repeat_interleave(3, 0), dim=1)

    def embedder(images):
        return vectors

    found = separation(embedder, faces)
    wins = []
    pairs = [(i, j) for i in range(15) for j in range(i)]
    genuine = [float(vectors[i].double() @ vectors[j].double()) for i, j in pairs if i // 3 == j // 3]
    impostor = [float(vectors[i].double() @ vectors[j].double()) for i, j in pairs if i // 3 != j // 3]
    wins = [1.0 if g > b else 0.5 if g == b else 0.0 for g in genuine for b in impostor]
    assert found == pytest.approx(sum(wins) / len(wins))
    assert separation(lambda images: vectors * math.nan, faces) == 0.0
    assert has_collapsed(0.9, 0.6)
    assert not has_collapsed(0.9, 0.75)
    assert not has_collapsed(0.55, 0.5)  # there was nothing to lose


def test_bounds_are_checked():
    with pytest.raises(ValueError, match="suspicion is 0"):
        Firewall(suspicion=0.0)
    with pytest.raises(ValueError, match="credible is nan"):
        Firewall(credible=math.nan)
    with pytest.raises(ValueError, match="judged is 7, it must be 0 or at least 8"):
        Firewall(judged=7)
