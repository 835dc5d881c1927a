"""Rounds that go wrong, quorums, who is asked, and the records of it all."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from personae.algorithms import FedPE, Pretrain
from personae.core.algorithm import ClientInfo, Server
from personae.core.problem import Problem
from personae.core.rng import generator
from personae.errors import ConfigError, DataError, Diverged, Interrupted, QuorumLost
from personae.runtime.exchange import Exchange
from personae.runtime.firewall import Firewall
from personae.runtime.inprocess import SameProcess, local_transport
from personae.runtime.round import federated_round
from personae.runtime.transport import Failure
from personae.selection import Passes, Share
from toys import (
    TRAINING,
    Crowd,
    Dropping,
    Notebook,
    Rehearsal,
    Relay,
    Reversed,
    ToyBenchmark,
    Troubled,
    quickly,
    stage_of,
)

REJECTED = {
    "nan": "ModelState holds values that are not finite",
    "huge": "variances far above those of the model that was sent",
    "0": "it claims 0 samples",
    "-3": "it claims -3 samples",
    "100000001": "it claims 100,000,001 samples",
    "other layout": "of another network: 12 entries are missing, 0.weight first",
}
EVALUATIONS = ("global", "personal")
FAILED = {  # what the server says, and what stays in the client's log
    "raises": (Problem.INTERNAL.words, "ZeroDivisionError: a bug in the client"),
    "diverges": (Problem.DIVERGED.words, "the loss is nan"),
    "short model": (
        Problem.INTERNAL.words,
        "ValueError: ModelState holds torch.float32 values of shape (2215,), expected 2216",
    ),
    "double model": (Problem.INTERNAL.words, "ValueError: ModelState holds torch.float64 values"),
    "fractional": (Problem.INTERNAL.words, "ValueError: Count is 2.5, not a whole number"),
    "1" + 400 * "0": (Problem.INTERNAL.words, "ValueError: Count has more than 64 bits"),
    "tensor": (Problem.INTERNAL.words, "ValueError: Scalars holds loss = tensor(1.), not a number"),
    "undeclared": (Problem.UNDECLARED.words, "Smuggler may not leave"),
}


def troubled(folder: Path, *trouble: tuple[str, str], **options) -> Rehearsal:
    return Rehearsal(folder, (stage_of(Troubled(training=TRAINING, trouble=trouble), **options),))


@pytest.mark.parametrize("how", [*REJECTED, *FAILED])
def test_a_bad_client_is_named_and_the_round_goes_on_as_if_it_had_not_been_asked(tmp_path: Path, how: str):
    run = troubled(tmp_path / "bad", ("bob", how)).run()
    there, reason, details = ("rejected", REJECTED[how], "") if how in REJECTED else ("failed", *FAILED[how])
    for event in run.notebook.rounds():
        assert event["participants"] == ["ann", "bob", "eve", "zoe"]
        assert list(event["rejected"] | event["failed"]) == ["bob"]
        assert reason in event[there]["bob"]
    log = "" if how in REJECTED else f"; the details are in {tmp_path / 'bad' / 'private' / 'problems.log'}"
    assert any("bob" in line and line.endswith(f"{event[there]['bob']}{log}") for line in run.notices)
    assert details in run.problems
    without = troubled(tmp_path / "without")
    without.run(Dropping(SameProcess(without.federation), "bob"))
    assert torch.equal(run.final(), without.final())
    assert run.notebook.rounds()[0]["scalars"] == without.notebook.rounds()[0]["scalars"]


@pytest.mark.parametrize("how", ["long", "99999999"])
def test_what_is_out_of_proportion_is_drawn_back_and_recorded(tmp_path: Path, how: str):
    run = troubled(tmp_path / "bad", ("bob", how)).run()
    assert [event["rejected"] for event in run.notebook.rounds()] == [{}, {}]
    found = [event for event in run.notebook.books["metrics"] if event["event"] == "suspicion"]
    assert [event["round"] for event in found] == [1, 2]
    assert all(event["drawn_back"]["bob"] and not event["left_out"] for event in found)
    begin, honest = run.federation.backbone().flat, troubled(tmp_path / "honest").run()
    weights = slice(run.federation.backbone().layout.trainable_size)
    usual = float((honest.final() - begin)[weights].norm())
    assert float((run.final() - begin)[weights].norm()) < 5 * usual


def test_replies_are_merged_in_the_order_of_the_clients_whatever_the_order_of_their_answers(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
):
    seen, merge = [], FedPE.merge

    def noting(self, state, replies, server):
        replies = list(replies)
        seen.append([reply.client for reply in replies])
        return merge(self, state, iter(replies), server)

    monkeypatch.setattr(FedPE, "merge", noting)
    rehearsal = replace(rehearsal, firewall=Firewall(enabled=False))  # a round that it changes is merged twice
    rehearsal.run(Reversed(SameProcess(rehearsal.federation)))
    assert seen == [[ClientInfo(name, index) for index, name in enumerate(("ann", "bob", "eve", "zoe"))]] * 2


def test_a_client_that_never_answers_is_named_even_if_the_transport_does_not(tmp_path: Path):
    run = troubled(tmp_path)
    run.run(Dropping(SameProcess(run.federation), "eve", silently=True))
    assert [list(event["failed"]) for event in run.notebook.rounds()] == [["eve"], ["eve"]]


def test_nobody_answering_is_a_lost_quorum(tmp_path: Path):
    class Silent(Relay):
        def tamper(self, answers):
            return []

    run = troubled(tmp_path)
    with pytest.raises(QuorumLost, match="0 of 4 clients returned an acceptable update"):
        run.run(Silent(SameProcess(run.federation)))


def test_a_lost_quorum_says_how_many_were_needed_and_why_they_are_missing(tmp_path: Path):
    run = troubled(tmp_path, ("ann", "raises"), ("bob", "nan"), ("eve", "diverges"))
    says = "stage fedpe, round 1: 1 of 4 clients returned an acceptable update, the quorum is 2; first of 3: ann: its"
    with pytest.raises(QuorumLost, match=says):
        run.run()
    assert run.checkpoints.latest() is None


PASSES = {"rounds": 4, "selection": Passes(clients=1)}  # one client in a round, each once


def test_with_patience_a_round_without_a_quorum_changes_nothing_and_the_run_goes_on(tmp_path: Path):
    run = troubled(tmp_path / "patient", ("bob", "raises"), patience=1, **PASSES).run()
    failed = [list(event["failed"]) for event in run.notebook.rounds()]
    assert sorted(failed) == [[], [], [], ["bob"]]
    warnings = [event for event in run.notebook.books["metrics"] if event["event"] == "warning"]
    assert [(each["round"] - 1, "bob were asked" in each["text"]) for each in warnings] == [
        (failed.index(["bob"]), True)
    ]
    assert any("this round changes nothing (1 in a row, patience 1)" in line for line in run.notices)
    without = troubled(tmp_path / "without", patience=1, **PASSES)
    replace(without.engine(), absent=frozenset({"bob"})).run()
    assert torch.equal(run.final(), without.final())
    with pytest.raises(QuorumLost, match="0 of 1 client"):
        troubled(tmp_path / "impatient", ("bob", "raises"), **PASSES).run()


def test_patience_ends_after_so_many_rounds_in_a_row_and_a_resumed_run_is_patient_again(tmp_path: Path):
    everybody = [(name, "raises") for name in ("ann", "bob", "eve", "zoe")]
    run = troubled(tmp_path, *everybody, patience=2, **PASSES)
    with pytest.raises(QuorumLost, match="round 3"):
        run.run()
    position, state = run.checkpoints.latest()
    assert position.round == 2
    assert torch.equal(state.model.flat, run.federation.backbone().flat)
    with pytest.raises(ConfigError, match="patience is 4, it must be less than rounds"):
        troubled(tmp_path / "more", patience=4, **PASSES)


def test_the_quorum_is_a_share_of_those_asked(tmp_path: Path):
    trouble = ("ann", "raises"), ("bob", "raises")
    troubled(tmp_path / "half", *trouble, quorum=0.5).run()
    with pytest.raises(QuorumLost, match=r"2 of 4 .* the quorum is 3"):
        troubled(tmp_path / "more", *trouble, quorum=0.51).run()
    with pytest.raises(QuorumLost, match="the quorum is 4"):
        troubled(tmp_path / "all", ("ann", "raises"), quorum=1.0).run()


@pytest.mark.parametrize(("quorum", "asked", "needed"), [(0.1, 30, 3), (0.28, 25, 7), (0.55, 20, 11), (0.3, 10, 3)])
def test_the_quorum_is_not_raised_by_rounding_errors(tmp_path: Path, quorum: float, asked: int, needed: int):
    """0.1 of 30 clients are 3, though 0.1 * 30 is a little more than 3."""
    names = tuple(f"client {index:02d}" for index in range(asked))
    trouble = tuple((name, "raises") for name in names[needed:])
    stage = stage_of(Troubled(training=replace(TRAINING, iterations=1), trouble=trouble), quorum=quorum, rounds=1)
    holdings = _Alike(clients=names)
    run = Rehearsal(tmp_path / "enough", (stage,), holdings=holdings)
    transport = SameProcess(run.federation)
    backbone = run.federation.backbone()
    clients = [ClientInfo(name, index) for index, name in enumerate(names)]
    server = Server(backbone.state(), backbone, None, None, generator(0), 1, 1)
    state = stage.algorithm.start(None, server)
    exchange = Exchange(transport, "train", stage, 1)
    outcome = federated_round(stage, state, server, clients, exchange, Firewall(), tmp_path / "s", lambda _: None)
    assert len(outcome.failed) == asked - needed
    fewer = Troubled(training=stage.algorithm.training, trouble=(*trouble, (names[0], "raises")))
    stage = replace(stage, algorithm=fewer)
    run = Rehearsal(tmp_path / "too few", (stage,), holdings=holdings)
    exchange = Exchange(SameProcess(run.federation), "train", stage, 1)
    with pytest.raises(QuorumLost, match=f"the quorum is {needed};"):
        federated_round(stage, state, server, clients, exchange, Firewall(), tmp_path / "s", lambda _: None)


class _Alike(Crowd):
    def of(self, client: str):
        return Crowd().of("ann")


def test_all_clients_diverging_is_divergence(tmp_path: Path):
    run = troubled(tmp_path, *((name, "diverges") for name in Crowd().clients))
    with pytest.raises(Diverged, match=r"0 of 4 .* ann: its training diverged; .* details are in .*problems.log"):
        run.run()


def test_a_learning_rate_beyond_reason_is_divergence(tmp_path: Path):
    mad = FedPE(training=replace(TRAINING, lr=1e30, iterations=40))
    with pytest.raises(Diverged, match="lower lr"):
        Rehearsal(tmp_path, (stage_of(mad),)).run()


def test_one_reasonable_client_keeps_it_from_being_divergence(tmp_path: Path):
    trouble = [(name, "diverges") for name in ("ann", "bob", "eve")]
    with pytest.raises(QuorumLost):
        troubled(tmp_path, *trouble, ("zoe", "raises")).run()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_private_state_interrupts_and_a_restored_one_ends_in_the_same_bits(tmp_path: Path, workers: int):
    """A client that was left out in silence would change the model of everybody."""
    undisturbed = Rehearsal(tmp_path / "undisturbed", (stage_of(quickly(FedPE())),)).run()
    folder = tmp_path / "run"
    state, copy = folder / "private" / "bob" / "fedpe" / "000001.safetensors", tmp_path / "copy"

    class Vandal(Relay):
        def exchange(self, requests):
            if state.exists() and not copy.exists():
                copy.write_bytes(state.read_bytes())
                state.write_bytes(b"scratched")
            yield from super().exchange(requests)

    def run() -> Rehearsal:
        rehearsal = Rehearsal(folder, (stage_of(quickly(FedPE())),))
        transport = local_transport(rehearsal.federation, workers)
        try:
            return rehearsal.run(Vandal(transport))
        finally:
            transport.close()

    complaint = r"000001\.safetensors: this private state is damaged"
    with pytest.raises(Interrupted, match=complaint if workers == 1 else "bob: what it keeps .* repair that"):
        run()
    if workers > 1:
        assert re.search(complaint, (folder / "private" / "problems.log").read_text())
    state.write_bytes(copy.read_bytes())
    assert torch.equal(run().final(), undisturbed.final())


def test_a_failed_client_keeps_what_it_had(tmp_path: Path):
    run = Rehearsal(
        tmp_path, (stage_of(Troubled(training=TRAINING, trouble=(("bob", "raises"),), since=2), rounds=3),)
    ).run()
    kept = {path.name for path in (tmp_path / "private" / "bob" / "fedpe").iterdir()}
    assert kept == {"000001.safetensors"}
    assert {path.name for path in (tmp_path / "private" / "ann" / "fedpe").iterdir()} == {
        "000002.safetensors",
        "000003.safetensors",
    }
    assert [list(event["failed"]) for event in run.notebook.rounds()] == [[], ["bob"], ["bob"]]


def test_newcomers_are_evaluated_but_never_trained(tmp_path: Path):
    run = Rehearsal(tmp_path, (stage_of(quickly(FedPE())),), holdings=Crowd(newcomers=frozenset({"bob"}))).run()
    assert [event["participants"] for event in run.notebook.rounds()] == [["ann", "eve", "zoe"]] * 2
    personal = next(event for event in run.notebook.books["metrics"] if event["event"] == "personal")
    assert list(personal["clients"]) == ["ann", "bob", "eve", "zoe"]
    assert sorted(path.name for path in (tmp_path / "private").iterdir()) == ["ann", "eve", "zoe"]


def test_a_share_draws_other_clients_each_round_and_the_same_ones_each_time(tmp_path: Path):
    def asked(folder: str, seed: int) -> list[list[str]]:
        stage = stage_of(quickly(FedPE()), rounds=6, selection=Share(share=0.5))
        return [e["participants"] for e in Rehearsal(tmp_path / folder, (stage,), seed=seed).run().notebook.rounds()]

    first = asked("a", 1)
    assert all(len(names) == 2 and names == sorted(names) for names in first)
    assert len({tuple(names) for names in first}) > 2
    assert asked("b", 1) == first
    assert asked("c", 2) != first


def test_the_ledger_holds_every_crossing_and_no_other(rehearsal: Rehearsal):
    rehearsal.run()
    size = 4 * rehearsal.federation.backbone().layout.size
    one_round = [
        {"client": name, "direction": direction, "payload": payload, "bytes": count}
        for name in ("ann", "bob", "eve", "zoe")
        for direction, payload, count in [
            ("down", "ModelState", size),
            ("up", "ModelState", size),
            ("up", "Count", 8),
            ("up", "Scalars", 8),
        ]
    ]
    evaluated = [
        {"client": name, "direction": direction, "payload": payload, "bytes": count}
        for name in ("ann", "bob", "eve", "zoe")
        for direction, payload, count in [("down", "ModelState", size), ("up", "Scalars", 16)]
    ]
    expected = [{"stage": "fedpe", "round": 0, **entry} for entry in evaluated]
    expected += [{"stage": "fedpe", "round": 1, **entry} for entry in one_round]
    expected += [{"stage": "fedpe", "round": 2, **entry} for entry in (*one_round, *evaluated)]
    assert rehearsal.notebook.books["ledger"] == expected


def test_evaluation_happens_when_asked_for_and_after_the_last_round(tmp_path: Path):
    stages = (
        stage_of(quickly(FedPE()), rounds=5, evaluate_every=2),
        stage_of(quickly(FedPE()), name="b", rounds=1),
        stage_of(quickly(FedPE()), name="c", rounds=1, after=""),
        stage_of(quickly(FedPE()), name="d", rounds=2, after="", evaluate_every=2),
    )
    events = Rehearsal(tmp_path, stages).run().notebook.books["metrics"]
    places = [(event["event"], event["stage"], event["round"]) for event in events if event["event"] in EVALUATIONS]
    assert places == [
        (event, *place)
        for place in [("fedpe", 0), ("fedpe", 2), ("fedpe", 4), ("fedpe", 5), ("b", 1), ("c", 1), ("d", 0), ("d", 2)]
        for event in EVALUATIONS
    ]
    starts = [event for event in events if event["event"] in EVALUATIONS and event["round"] == 0]
    for one, other in (starts[::2], starts[1::2]):  # both from the model that the run starts from
        assert {**one, "stage": ""} == {**other, "stage": ""}


def test_only_weights_that_were_given_are_evaluated_in_full_before_the_first_round(tmp_path: Path):
    class Noting(ToyBenchmark):
        def evaluate(self, embedder, *, final):
            asked.append(final)
            return super().evaluate(embedder, final=final)

    asked: list[bool] = []
    stages = (stage_of(quickly(FedPE())), stage_of(quickly(FedPE()), name="b", after="", evaluate_every=1))
    random = Rehearsal(tmp_path / "random", stages, benchmarks=(Noting(),)).run()
    assert (asked, random.notebook.given) == ([False, True, False, False, True], {})
    asked.clear()
    given = Rehearsal(tmp_path / "given", stages, benchmarks=(Noting(),))
    replace(given.engine(), initial=given.federation.backbone().state()).run()
    assert asked == [True, True, False, False, True]
    start = given.notebook.books["metrics"][0]["metrics"]
    assert given.notebook.given == {"fedpe": {Noting().name: {key.split("/")[1]: start[key] for key in start}}}


def test_a_start_that_cannot_be_evaluated_keeps_nobody_from_training(tmp_path: Path):
    """A deep network overflows before BatchNorm has seen a batch."""

    class Overflowing(ToyBenchmark):
        def evaluate(self, embedder, *, final):
            if not run.notebook.rounds():
                raise Diverged("the embeddings are not finite")
            return super().evaluate(embedder, final=final)

    run = Rehearsal(tmp_path, (stage_of(quickly(FedPE())),), benchmarks=(Overflowing(),))
    run.run()
    told = [event["event"] for event in run.notebook.books["metrics"] if event["event"] != "suspicion"]
    assert told == ["round", "round", "global", "personal"]
    assert run.notices == ["fedpe: the start has no figures; its embeddings are not finite before training"]


class Cut(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("where", ["metrics", "ledger", "timing", "position"])
def test_what_was_written_before_the_first_checkpoint_is_not_written_twice(tmp_path: Path, where: str):
    """A run that stops in its very first round has nothing to go back to but the beginning."""
    whole = Rehearsal(tmp_path / "whole", (stage_of(quickly(FedPE())),)).run()

    class Faint(Notebook):
        def position(self):
            if where == "position":
                raise Cut
            return super().position()

        def write(self, entry):
            super().write(entry)
            if where == entry.record:
                raise Cut

    run = Rehearsal(tmp_path / "cut", whole.recipe, notebook=Faint())
    with pytest.raises(Cut):
        run.run()
    assert run.checkpoints.latest() is None
    assert any(run.notebook.books.values())
    again = Rehearsal(tmp_path / "cut", whole.recipe)
    again.notebook.books = run.notebook.books
    again.run()
    assert again.notebook.books["metrics"] == whole.notebook.books["metrics"]
    assert again.notebook.books["ledger"] == whole.notebook.books["ledger"]
    assert again.files() == whole.files()


def test_a_finished_run_has_nothing_left_to_do(rehearsal: Rehearsal):
    before = rehearsal.run().files(), rehearsal.notebook.books
    asked = Relay(SameProcess(rehearsal.federation))
    rehearsal.run(asked)
    assert asked.requests == []
    assert (rehearsal.files(), rehearsal.notebook.books) == before


def test_another_experiment_in_the_same_folder_is_refused(rehearsal: Rehearsal):
    rehearsal.run()
    with pytest.raises(ConfigError, match="of another experiment"):
        Rehearsal(rehearsal.folder, rehearsal.recipe, experiment="another").run()


def test_a_damaged_checkpoint_stops_the_run_before_it_starts(rehearsal: Rehearsal):
    rehearsal.run()
    for name in ("latest", "before"):
        (rehearsal.folder / "checkpoints" / f"{name}.safetensors").write_bytes(b"scratched")
    with pytest.raises(DataError, match="this checkpoint cannot be read"):
        rehearsal.run()


def test_a_damaged_checkpoint_costs_one_round_and_not_a_bit(rehearsal: Rehearsal):
    files = rehearsal.run().files()
    (rehearsal.folder / "checkpoints" / "latest.safetensors").write_bytes(b"scratched")
    assert rehearsal.run().files() == files


def test_a_stage_continues_from_the_one_it_names(tmp_path: Path):
    def stages(*last):
        return (stage_of(quickly(Pretrain()), name="a"), stage_of(quickly(FedPE()), name="b"), *last)

    tail = stage_of(quickly(FedPE()), name="c", after="a")
    branched = Rehearsal(tmp_path / "1", stages(tail)).run()
    direct = Rehearsal(tmp_path / "2", (stages()[0], replace(tail, after=None))).run()
    chained = Rehearsal(tmp_path / "3", stages(replace(tail, after=None))).run()
    assert torch.equal(branched.final("c"), direct.final("c"))
    assert not torch.equal(branched.final("c"), chained.final("c"))


def test_no_figures_of_a_client_that_fails_in_its_evaluation(rehearsal: Rehearsal):
    class Deaf(Relay):
        def tamper(self, answers):
            for answer in answers:
                evaluated = self.requests[-1].task == "evaluate"
                yield Failure(answer.client, "no light") if evaluated and answer.client.name == "eve" else answer

    rehearsal.run(Deaf(SameProcess(rehearsal.federation)))
    personal = next(event for event in rehearsal.notebook.books["metrics"] if event["event"] == "personal")
    assert list(personal["clients"]) == ["ann", "bob", "zoe"]
    assert rehearsal.notices == [f"fedpe, round {round_}: no figures of eve: no light" for round_ in (0, 2)]


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0},
        {"quorum": 0.0},
        {"quorum": 2},
        {"evaluate_every": -1},
    ],
)
def test_impossible_stages_are_refused(options):
    with pytest.raises(ConfigError, match=f"stage fedpe: {next(iter(options))} is"):
        stage_of(FedPE(), **options)
