"""People whom several clients hold: one row each, pushed away only by clients outside the group."""

import hashlib
import hmac
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import FedGC
from personae.algorithms.fedgc import State, Up
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.payload import Aliases, ClassEmbeddings, Count, Expectation, PublicEmbeddings, Scalars
from personae.core.rng import generator
from personae.parts.corrections import cosine_regulariser, softmax_regulariser
from personae.parts.linking import tokens_of
from personae.parts.margins import Margin
from personae.runtime.firewall import Firewall
from personae.runtime.inprocess import SameProcess
from toys import NAMES, TRAINING, Crowd, Faces, Rehearsal, Relay, stage_of

SOFTMAX = Margin(kind="softmax")
HOLDERS = ({0}, {0, 1}, {1}, {2}, {1, 2}, {0, 2, 3}, {3})  # who holds each of seven people


def crowd(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randn(len(HOLDERS), 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    members = torch.tensor([[client in holders for client in range(4)] for holders in HOLDERS])
    return rows, members


def pushes(a: int, b: int) -> bool:
    """Whether a class b is held by a client that does not hold a."""
    return bool(HOLDERS[b] - HOLDERS[a])


# --------------------------------------------------------------------------------------------------- the regularisers


@pytest.mark.parametrize("block", [2, 256])
def test_softmax_over_shared_people_written_out_in_numpy(block: int):
    rows, members = crowd()
    w, value, gradient = rows.numpy(), 0.0, np.zeros(rows.shape)
    for a in range(len(w)):
        own = math.exp(w[a] @ w[a])
        others = {b: math.exp(w[b] @ w[a]) for b in range(len(w)) if b != a and pushes(a, b)}
        total = own + sum(others.values())
        value -= math.log(own / total)
        gradient[a] += (own / total - 1) * w[a]
        for b, each in others.items():
            gradient[b] += each / total * w[a]
    found = softmax_regulariser(rows, members, SOFTMAX, block=block)
    assert float(found.value) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("block", [2, 256])
def test_cosine_over_shared_people_written_out_in_numpy(block: int):
    rows, members = crowd(1)
    w = rows.numpy()
    expected = np.array([sum((w[a] for a in range(len(w)) if pushes(a, b)), np.zeros(5)) for b in range(len(w))])
    found = cosine_regulariser(rows, members, SOFTMAX, reduction="mean", block=block)
    pairs = sum(pushes(a, b) for a in range(len(w)) for b in range(len(w)))
    np.testing.assert_allclose(found.gradient, expected / pairs, rtol=1e-12, atol=1e-13)
    assert float(found.value) == pytest.approx((w * expected).sum() / pairs, rel=1e-12)


@pytest.mark.parametrize("regulariser", [softmax_regulariser, cosine_regulariser])
def test_with_nobody_shared_it_is_what_it_was(regulariser: Any):
    rows, _ = crowd(2)
    owners = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    one, other = regulariser(rows, owners, SOFTMAX), regulariser(rows, F.one_hot(owners).bool(), SOFTMAX)
    torch.testing.assert_close(one.gradient, other.gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.value, other.value, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------------- the server


def merged(algorithm: FedGC, backbone: Backbone, state: State, heard: dict[str, tuple[Any, Any]]) -> State:
    server = Server(state.model, backbone, None, None, generator(0), 1, 1)
    replies = [
        Reply(
            ClientInfo(name, index),
            Up(model=state.model, class_embeddings=rows, aliases=aliases, samples=Count(3), training=Scalars({})),
        )
        for index, (name, (rows, aliases)) in enumerate(heard.items())
    ]
    return algorithm.merge(state, iter(replies), server)


def sent(seed: int, *tokens: int) -> tuple[ClassEmbeddings, Aliases]:
    rows = torch.randn(len(tokens), 8, generator=torch.Generator().manual_seed(seed))
    return ClassEmbeddings(rows), Aliases(torch.tensor(tokens))


def test_rows_of_one_person_are_averaged_and_only_outsiders_push(backbone: Backbone):
    algorithm = FedGC(margin=SOFTMAX, strength=0.5, lr=0.1, link="secret", holders=2)
    heard = {"ann": sent(1, 7, 9), "bob": sent(2, 9, 4), "eve": sent(3, 5)}
    state = merged(algorithm, backbone, State(model=backbone.state(), class_embeddings={}), heard)
    ann, bob, eve = (heard[name][0].vectors for name in ("ann", "bob", "eve"))
    both = (ann[1] / ann[1].norm() + bob[0] / bob[0].norm()) / 2 * min(ann[1].norm(), bob[0].norm())
    people = torch.stack([bob[1], eve[0], ann[0], both])  # 4, 5, 7, 9
    members = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0]]).bool()
    expected = people - 0.05 * softmax_regulariser(people, members, SOFTMAX).gradient
    torch.testing.assert_close(state.class_embeddings["ann"].vectors, expected[[2, 3]])
    torch.testing.assert_close(state.class_embeddings["bob"].vectors, expected[[3, 0]])
    torch.testing.assert_close(state.class_embeddings["eve"].vectors, expected[[1]])
    assert torch.equal(state.class_embeddings["ann"].vectors[1], state.class_embeddings["bob"].vectors[0])

    # eve and bob stay away: ann alone speaks for 9, so it is her own row that moves, and bob's copy stays as it was.
    again = merged(algorithm, backbone, state, {"ann": sent(4, 7, 9)})
    fresh = sent(4, 7, 9)[0].vectors
    people = torch.stack([expected[0], expected[1], fresh[0], fresh[1], expected[3]])
    corrected = people - 0.05 * softmax_regulariser(people, members[[0, 1, 2, 3, 3]], SOFTMAX).gradient
    torch.testing.assert_close(again.class_embeddings["ann"].vectors, corrected[[2, 3]])
    torch.testing.assert_close(again.class_embeddings["bob"].vectors, expected[[3, 0]])
    torch.testing.assert_close(again.class_embeddings["eve"].vectors, expected[[1]])


def test_no_client_has_more_people_than_can_be_compared(backbone: Backbone):
    def update(people: int) -> Up:
        rows = ClassEmbeddings(torch.full((people, backbone.width), 0.1))
        return Up(model=backbone.state(), class_embeddings=rows, samples=Count(1), training=Scalars({"loss": 1.0}))

    assert Firewall().problem(update(100_000), backbone) is None
    assert "it claims 100,001 people" in (Firewall().problem(update(100_001), backbone) or "")


def test_who_claims_to_hold_somebody_neither_gets_their_template_nor_overwrites_it(backbone: Backbone):
    victim, (_, aliases) = sent(1, 7, 9)[0].vectors, sent(2, 9)
    for length in (1e-6, 1.0, 9e3):
        claimed = length * torch.nn.functional.one_hot(torch.tensor([3]), 8).float()
        heard = {"ann": sent(1, 7, 9), "rogue": (ClassEmbeddings(claimed), aliases)}
        start = State(model=backbone.state(), class_embeddings={})
        state = merged(FedGC(strength=0.0, link="secret"), backbone, start, heard)
        assert torch.equal(state.class_embeddings["ann"].vectors, victim)
        assert torch.equal(state.class_embeddings["rogue"].vectors, claimed)
        # What it is for, now with a strength: the step of its own row does not tell the victim's either.
        moved = merged(FedGC(margin=SOFTMAX, strength=0.5, lr=0.1, link="secret"), backbone, start, heard)
        other = {**heard, "ann": (ClassEmbeddings(torch.stack([victim[0], -victim[1]])), heard["ann"][1])}
        again = merged(FedGC(margin=SOFTMAX, strength=0.5, lr=0.1, link="secret"), backbone, start, other)
        torch.testing.assert_close(moved.class_embeddings["rogue"].vectors, again.class_embeddings["rogue"].vectors)


@pytest.mark.parametrize("holders", [3, 4])
def test_clients_that_claim_somebody_together_get_nothing_where_more_must_speak(backbone: Backbone, holders: int):
    """They know their own rows, so the mean of three tells them the third: `holders` has to leave room for them."""
    victim = sent(1, 9)[0].vectors[0]
    own = {name: sent(seed, 9) for seed, name in ((2, "one"), (3, "two"))}
    own = {name: (ClassEmbeddings(F.normalize(rows.vectors)), aliases) for name, (rows, aliases) in own.items()}
    start = State(model=backbone.state(), class_embeddings={})
    state = merged(FedGC(strength=0.0, link="secret", holders=holders), backbone, start, {"ann": sent(1, 9), **own})
    back = state.class_embeddings["one"].vectors[0]
    told = F.normalize(3 * back - sum(rows.vectors[0] for rows, _ in own.values()), dim=0)
    assert victim.norm() > 1  # then the median length is theirs
    likeness = float(told @ F.normalize(victim, dim=0))
    if holders == 3:
        assert likeness == pytest.approx(1.0, abs=1e-5)
    else:
        assert torch.equal(back, own["one"][0].vectors[0])
        assert torch.equal(state.class_embeddings["ann"].vectors[0], victim)


def test_no_holder_outweighs_the_others_by_the_length_of_its_row(backbone: Backbone):
    heard = {
        "ann": sent(1, 9),
        "bob": sent(2, 9),
        "rogue": (ClassEmbeddings(1e4 * sent(3, 9)[0].vectors), sent(3, 9)[1]),
    }
    start = State(model=backbone.state(), class_embeddings={})
    state = merged(FedGC(strength=0.0, link="secret"), backbone, start, heard)
    rows = torch.cat([each[0].vectors for each in heard.values()])
    expected = F.normalize(rows).mean(0) * sorted(rows.norm(dim=1).tolist())[1]
    for name in heard:
        torch.testing.assert_close(state.class_embeddings[name].vectors[0], expected)


@pytest.mark.parametrize("absent", ["class_embeddings", "aliases"])
def test_rows_and_aliases_come_together_or_the_client_has_failed(tmp_path: Path, absent: str):
    class Careless(Relay):
        def tamper(self, answers: Any) -> Any:
            for answer in answers:
                if answer.client.name == "bob" and isinstance(answer.message, Up):
                    answer = replace(answer, message=replace(answer.message, **{absent: None}))
                yield answer

    algorithm = FedGC(training=TRAINING, strength=0.1, link="secret")
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Acquainted())
    run.run(Careless(SameProcess(run.federation)))
    assert [event["rejected"]["bob"] for event in run.notebook.rounds()] == [f"it sends no {absent}"] * 2


def test_what_nobody_sends_in_a_run_is_refused(backbone: Backbone):
    rows, aliases = sent(1, 7)
    up = Up(model=backbone.state(), class_embeddings=rows, aliases=aliases, samples=Count(1), training=Scalars({}))
    assert FedGC().objection(up) == "it sends aliases, which nobody sends in this run"
    assert FedGC(link="secret").objection(up) is None
    assert FedGC(regulariser="none").objection(replace(up, aliases=None)) is not None


@pytest.mark.parametrize("kind", [ClassEmbeddings, PublicEmbeddings])
def test_rows_that_are_far_too_long_are_refused(backbone: Backbone, kind: Any):
    expected = Expectation(layout=backbone.layout, width=8, public_classes=2)
    for length, refused in ((1.0, False), (9e3, False), (2e4, True), (3e38, True)):
        rows = torch.zeros(2, 8)
        rows[1, 3] = length
        assert (kind(rows).implausible(expected) is not None) == refused
    assert "not finite" in kind(torch.full((1, 8), math.inf)).implausible(expected)
    sizes = {"ann": 1, "bob": 2, "eve": 1, "zoe": 30}
    lengths = {name: kind(size * torch.ones(1, 8)).measures(backbone.state()) for name, size in sizes.items()}
    assert Firewall().outliers(lengths) == {"zoe": "its longest class embedding is 20.0 times the round's median"}


class Acquainted(Crowd):
    """Ann and Bob hold two people in common."""

    def of(self, client: str) -> Any:
        faces = super().of(client)
        common = ["zoe", "max"] if client in NAMES[:2] else []
        names = [*common, *(f"{client}-{number}" for number in range(20))]
        parts = {
            part: Faces(each.pixels, each.labels, each.classes, tuple(names[: each.classes]))
            for part, each in (("train", faces.train), ("val", faces.val), ("test", faces.test))
        }
        return type(faces)(**parts)


def test_a_whole_run_with_shared_people(tmp_path: Path):
    algorithm = FedGC(training=TRAINING, strength=0.1, link="secret")
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2),), holdings=Acquainted()).run()
    state = run.checkpoints.finished("fedgc")
    first, second = (state.class_embeddings[name].vectors for name in NAMES[:2])
    assert not torch.equal(first[:2], second[:2])  # two are too few to share a row
    assert torch.equal(state.aliases[NAMES[0]].tokens[:2], state.aliases[NAMES[1]].tokens[:2])
    assert len(torch.cat([state.aliases[name].tokens for name in NAMES]).unique()) == 2 + 3 + 4 + 5 - 2
    assert any(entry["payload"] == "Aliases" for entry in run.notebook.books["ledger"])
    two = Rehearsal(tmp_path / "two", (stage_of(replace(algorithm, holders=2), rounds=2),), holdings=Acquainted())
    replace(two, firewall=Firewall(norm_multiple=1000)).run()  # toys move far in their first rounds
    rows = two.checkpoints.finished("fedgc").class_embeddings
    assert torch.equal(rows[NAMES[0]].vectors[:2], rows[NAMES[1]].vectors[:2])
    plain = Rehearsal(tmp_path / "plain", (stage_of(FedGC(training=TRAINING, strength=0.1), rounds=2),)).run()
    assert not any(entry["payload"] == "Aliases" for entry in plain.notebook.books["ledger"])


# --------------------------------------------------------------------------------------------------------------- tokens


def test_tokens_by_hand():
    digest = hmac.new(b"secret", b"zoe", hashlib.sha256).digest()
    assert int(tokens_of(["zoe"], "secret")[0]) == int.from_bytes(digest[:8], "little", signed=True)
    assert not torch.equal(tokens_of(["zoe"], "secret"), tokens_of(["zoe"], "another"))
    assert len(tokens_of([f"person-{number}" for number in range(10_000)], "k").unique()) == 10_000


def test_aliases_that_make_no_sense_are_refused(backbone: Backbone):
    with pytest.raises(ValueError, match="twice"):
        Aliases(torch.tensor([3, 4, 3]))
    with pytest.raises(ValueError, match="int64"):
        Aliases(torch.tensor([3.0]))
    update = Up(
        model=backbone.state(),
        class_embeddings=ClassEmbeddings(torch.zeros(3, backbone.width)),
        aliases=Aliases(torch.tensor([1, 2])),
        samples=Count(3),
        training=Scalars({}),
    )
    assert Firewall().problem(update, backbone) == (
        "it does not speak of the same number of identities everywhere: 3 in ClassEmbeddings and 2 in Aliases"
    )


@pytest.mark.parametrize(
    "options", [{"link": ""}, {"link": "k", "regulariser": "none"}, {"anchors": 0}, {"holders": 1}]
)
def test_impossible_options_are_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match="must"):
        FedGC(**options)
