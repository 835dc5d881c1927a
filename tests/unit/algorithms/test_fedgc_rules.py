"""FedGC beyond its golden case: who moves, what the paper's baselines are, and the theory on a small problem."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from personae.algorithms import FedFace, FedGC, FedPE
from personae.algorithms.fedgc import Private, State, Up
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.payload import ClassEmbeddings, Count, Scalars
from personae.core.rng import generator
from personae.errors import Diverged
from personae.parts.corrections import cosine_regulariser, drawn, softmax_regulariser, stacked
from personae.parts.margins import Margin
from personae.privacy.disclosure import sends, warning
from personae.runtime.store import PrivateStore
from personae.selection import Share
from toys import NAMES, TRAINING, Rehearsal, stage_of

SOFTMAX = Margin(kind="softmax")


def rows_of(seed: int, count: int = 2, width: int = 8) -> ClassEmbeddings:
    return ClassEmbeddings(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def merged(
    algorithm: FedGC, backbone: Backbone, known: dict[str, Any], heard: dict[str, Any], round_: int = 1, rounds: int = 1
) -> State:
    model = backbone.state()
    server = Server(model, backbone, None, None, generator(0), round_, rounds)
    replies = [
        Reply(ClientInfo(name, index), Up(model=model, class_embeddings=rows, samples=Count(3), training=Scalars({})))
        for index, (name, rows) in enumerate(heard.items())
    ]
    return algorithm.merge(State(model=model, class_embeddings=known), iter(replies), server)


def test_rows_of_absent_clients_stay_as_last_seen_and_push_all_the_same(backbone: Backbone):
    algorithm = FedGC(margin=SOFTMAX, strength=0.5, lr=0.1)
    known = {"ann": rows_of(1, 3), "eve": rows_of(2)}
    heard = {"zoe": rows_of(3), "ann": rows_of(4, 3)}
    found = merged(algorithm, backbone, known, heard).class_embeddings
    everyone = [heard["ann"].vectors, known["eve"].vectors, heard["zoe"].vectors]
    rows, owners = stacked(everyone)
    expected = rows - 0.05 * softmax_regulariser(rows, owners, SOFTMAX).gradient
    assert list(found) == ["ann", "eve", "zoe"]
    assert torch.equal(found["ann"].vectors, expected[:3])
    assert torch.equal(found["eve"].vectors, known["eve"].vectors)
    assert torch.equal(found["zoe"].vectors, expected[5:])
    alone = merged(algorithm, backbone, {}, heard).class_embeddings
    assert not torch.allclose(alone["zoe"].vectors, found["zoe"].vectors)  # eve has pushed


@pytest.mark.parametrize(("span", "share"), [("stage", 0.5 * (1 + math.cos(math.pi * 2.5 / 4))), ("round", 1.0)])
def test_eta_follows_the_schedule_of_local_steps(backbone: Backbone, span: str, share: float):
    """Round 3 of 4: by default the rate of local steps in the middle of the round, where their schedule spans them."""
    training = replace(TRAINING, lr=0.1, schedule="cosine", span=span)
    heard = {"ann": rows_of(4, 3), "zoe": rows_of(3)}
    for lr, eta in ((None, 0.1 * share), (0.2, 0.2)):
        algorithm = FedGC(margin=SOFTMAX, strength=0.5, training=training, lr=lr)
        found = merged(algorithm, backbone, {}, heard, 3, 4).class_embeddings
        rows, owners = stacked([heard["ann"].vectors, heard["zoe"].vectors])
        expected = rows - 0.5 * eta * softmax_regulariser(rows, owners, SOFTMAX).gradient
        assert torch.allclose(torch.cat([found["ann"].vectors, found["zoe"].vectors]), expected, atol=1e-7)


@pytest.mark.parametrize("regulariser", ["softmax", "cosine"])
@pytest.mark.parametrize("options", [{"normalise": True}, {"normalise": False}, {"reduction": "mean"}, {}])
def test_the_options_of_the_regulariser_reach_it(backbone: Backbone, regulariser: str, options: dict[str, Any]):
    margin = Margin(scale=8.0) if options.get("normalise") is False else Margin(kind="softmax", scale=8.0)
    heard = {"ann": rows_of(4, 3), "zoe": rows_of(3)}
    algorithm = FedGC(margin=margin, regulariser=regulariser, strength=0.5, lr=0.1, **options)
    found = merged(algorithm, backbone, {}, heard).class_embeddings
    rows, owners = stacked([heard["ann"].vectors, heard["zoe"].vectors])
    form = softmax_regulariser if regulariser == "softmax" else cosine_regulariser
    steps = {name: 0.05 * form(rows, owners, margin, **how).gradient for name, how in (("with", options), ("", {}))}
    assert torch.equal(torch.cat([found["ann"].vectors, found["zoe"].vectors]), rows - steps["with"])
    assert torch.equal(steps["with"], steps[""]) == (not options)


@pytest.mark.parametrize(
    "options", [{}, {"self_term": False}, {"tangential": True}, {"regulariser": "cosine"}, {"normalise": True}]
)
def test_a_given_displacement_is_that_of_the_rows_that_move_whatever_the_form(options: dict[str, Any]):
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    owners, moving = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([[True]] * 4 + [[False]] * 2)
    algorithm = FedGC(displacement=0.05, margin=Margin(kind="softmax"), **options)
    change = algorithm.step(rows, owners, moving, 0.1) - rows
    assert float(change[:4].norm() / rows[:4].norm()) == pytest.approx(0.05, rel=1e-5)
    assert not change[4:].any()
    usual = replace(algorithm, displacement=None, strength=1.0).step(rows, owners, moving, 0.1) - rows
    assert F.cosine_similarity(change.flatten(), usual.flatten(), dim=0) == pytest.approx(1, abs=1e-6)


def test_where_nothing_pushes_a_displacement_moves_nothing():
    rows = torch.eye(3)  # at right angles, and of one client: nobody else is there to push
    algorithm = FedGC(displacement=0.05, margin=Margin(kind="softmax"), self_term=False)
    assert torch.equal(
        algorithm.step(rows, torch.zeros(3, dtype=torch.long), torch.ones(3, 1, dtype=torch.bool), 0.1), rows
    )


def test_anchors_are_drawn_with_the_random_numbers_of_the_server(backbone: Backbone):
    algorithm = FedGC(margin=SOFTMAX, strength=0.5, lr=0.1, anchors=2)
    heard = {"ann": rows_of(4, 3), "zoe": rows_of(3)}
    rows, owners = stacked([heard["ann"].vectors, heard["zoe"].vectors])
    chosen = drawn(2, rows, generator(0))  # the server's random numbers of that round
    expected = rows - 0.05 * softmax_regulariser(rows, owners, SOFTMAX, anchors=chosen).gradient
    found = merged(algorithm, backbone, {}, heard).class_embeddings
    assert torch.equal(torch.cat([found["ann"].vectors, found["zoe"].vectors]), expected)


def test_a_run_with_half_of_the_clients_a_round_keeps_everybodys_rows(tmp_path: Path):
    algorithm = FedGC(training=TRAINING, strength=0.1)
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=6, selection=Share(share=0.5)),)).run()
    seen = {name for event in run.notebook.rounds() for name in event["participants"]}
    rows = run.checkpoints.finished("fedgc").class_embeddings
    assert set(rows) == seen == set(NAMES)
    last = set(run.notebook.rounds()[-1]["participants"])
    assert len(last) == 2
    layout = run.federation.backbone().layout
    for name in NAMES:
        kept = PrivateStore.of(tmp_path / "private", name).load("fedgc", Private, layout).class_embeddings
        assert not torch.equal(kept, rows[name].vectors)  # corrected since, in the round in which it was last heard


def test_a_client_goes_on_from_the_corrected_rows(tmp_path: Path):
    """With next to no training, what it sends in the second round is what the server made of the first."""
    still = replace(TRAINING, lr=1e-12, weight_decay=0.0)
    one, two = (
        Rehearsal(
            tmp_path / str(rounds), (stage_of(FedGC(training=still, strength=1.0, lr=0.01), rounds=rounds),)
        ).run()
        for rounds in (1, 2)
    )
    layout = two.federation.backbone().layout
    for name in NAMES:
        kept = PrivateStore.of(tmp_path / "2" / "private", name).load("fedgc", Private, layout).class_embeddings
        torch.testing.assert_close(kept, one.checkpoints.finished("fedgc").class_embeddings[name].vectors)


# ------------------------------------------------------------------------------------------------ the paper's baselines


def test_without_a_regulariser_it_is_fedpe_to_the_bit(tmp_path: Path):
    runs = {}
    for name, algorithm in (
        ("fedpe", FedPE(training=TRAINING)),
        ("fedgc", FedGC(training=TRAINING, regulariser="none")),
    ):
        recipe = (stage_of(algorithm, name="federate", rounds=3, selection=Share(share=0.5)),)
        runs[name] = Rehearsal(tmp_path / name, recipe).run()
    assert torch.equal(runs["fedpe"].final(), runs["fedgc"].final())
    assert runs["fedpe"].notebook.books == {
        **runs["fedgc"].notebook.books,
        "timing": runs["fedpe"].notebook.books["timing"],
    }
    private = [
        {path: data for path, data in run.files().items() if path.startswith("private")} for run in runs.values()
    ]
    assert private[0] == private[1]


def test_fixed_class_embeddings_stay_as_they_began(tmp_path: Path):
    algorithm = FedGC(training=TRAINING, regulariser="none", fixed=True, head_init="random")
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),)).run()
    layout = run.federation.backbone().layout
    for name in NAMES:
        kept = PrivateStore.of(tmp_path / "private", name).load("fedgc", Private, layout).class_embeddings
        drawn = torch.randn(kept.shape, generator=generator(run.seed, "fedgc", 1, name, "train"))
        assert torch.equal(kept, F.normalize(drawn, dim=1))
    assert not torch.equal(run.final(), run.federation.backbone().flat)
    assert not any(entry["payload"] == "ClassEmbeddings" for entry in run.notebook.books["ledger"])


def test_the_warning_goes_by_what_is_configured():
    plain, gc = FedGC(regulariser="none"), FedGC()
    assert warning(plain) is None
    assert "ClassEmbeddings" not in sends(plain)
    assert "ClassEmbeddings" in (warning(gc) or "")
    assert sends(gc) == ["ClassEmbeddings", "Count", "ModelState", "Scalars"]
    assert "Aliases" in sends(FedGC(link="secret"))
    assert sends(FedGC) == [
        "Aliases",
        "ClassEmbeddings",
        "Count",
        "ModelState",
        "Scalars",
    ]  # what it might, unconfigured
    assert warning(FedFace(strength=0.0)) is None
    assert "ClassEmbeddings" in (warning(FedFace()) or "")


@pytest.mark.parametrize(
    "options",
    [{"strength": -1.0}, {"strength": math.nan}, {"lr": 0.0}, {"displacement": 0.0}, {"steps": 0}, {"fixed": True}],
)
def test_impossible_options_are_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"must|cannot"):
        FedGC(**options)


def test_a_correction_beyond_reason_is_divergence(backbone: Backbone):
    algorithm = FedGC(margin=SOFTMAX, strength=1e38, lr=100.0)
    with pytest.raises(Diverged, match="lower the strength"):
        merged(algorithm, backbone, {}, {"ann": rows_of(1), "bob": rows_of(2)})


# ----------------------------------------------------------------------------------------------------------- the theory


def alike(one: Tensor, other: Tensor) -> float:
    return float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0))


@pytest.mark.parametrize("seed", range(5))
def test_updates_agree_with_those_of_softmax_over_all_classes_better_than_fedpes_do(seed: int):
    """Eqs. 8 to 13: features near their class embeddings, lambda = 1/C, people who look alike in different clients."""
    clients, people, images, width, lr = 4, 3, 5, 16, 0.01
    classes, source = clients * people, torch.Generator().manual_seed(seed)
    looks = torch.randn(people, width, generator=source, dtype=torch.float64).repeat(clients, 1)
    rows = 2 * F.normalize(looks + 0.6 * torch.randn(classes, width, generator=source, dtype=torch.float64))
    labels = torch.arange(classes).repeat_interleave(images)
    features = rows[labels] + 0.05 * torch.randn(len(labels), width, generator=source, dtype=torch.float64)
    live = rows.clone().requires_grad_()
    everywhere = SOFTMAX.loss(features, live, labels)
    local = torch.stack(
        [
            SOFTMAX.loss(mine, part, torch.arange(people).repeat_interleave(images))
            for mine, part in zip(features.split(people * images), live.split(people), strict=True)
        ]
    ).mean()
    (standard,), (own,) = torch.autograd.grad(everywhere, live), torch.autograd.grad(local, live)

    owners = torch.arange(clients).repeat_interleave(people)
    server = FedGC(margin=SOFTMAX, strength=1 / classes)
    trained = rows - lr * own
    corrected = server.step(trained, owners, torch.ones(classes, 1, dtype=torch.bool), lr)
    fedpe, fedgc = alike(trained - rows, -standard), alike(corrected - rows, -standard)
    assert fedpe < 0.7
    assert fedgc > 0.98
