"""Secret sums: the mean is right, whoever vanishes; the server learns the sum and nothing else; clients see to it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from personae.algorithms import FedFR, FedPE
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.layer import Layer, layered
from personae.core.message import Trouble
from personae.core.problem import Problem
from personae.errors import ConfigError, QuorumLost
from personae.experiment.config import parse_experiment
from personae.layers import Carry, Clip, SecretSum
from personae.layers.local_noise import LocalNoise
from personae.layers.noise import Noise
from personae.layers.secret_sum import Arrived, Begin
from personae.parts import secret_sums as sums
from personae.parts.masked import Members, as_bytes, as_numbers
from personae.runtime.firewall import Firewall
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess, WorkerProcesses
from personae.runtime.transport import Answer, Failure, Request
from personae.selection import FixedCount
from toys import TRAINING, Crowd, Rehearsal, Relay, quickly, stage_of

SIX = ("ann", "bob", "cat", "dan", "eve", "zoe")
QUESTIONS = ("keys", "shares", "train", "open")


def rehearsal(
    folder: Path, *layers: Layer, clients: Sequence[str] = SIX, lr: float = TRAINING.lr, **options: Any
) -> Rehearsal:
    weighting = options.pop("weighting", "samples")
    algorithm = replace(quickly(FedPE(weighting=weighting)), training=replace(TRAINING, lr=lr))
    stage = stage_of(layered(algorithm, *layers), **{"rounds": 1, **options})
    return Rehearsal(folder, (stage,), Crowd(clients=tuple(clients)), benchmarks=())


class Watching(Relay):
    """Keeps all that crosses. Clients vanish with their answer to a question of a round."""

    def __init__(self, inner: Any, *vanish: tuple[str, str, int]) -> None:
        super().__init__(inner)
        self.vanish, self.heard = set(vanish), defaultdict[str, dict[str, Any]](dict)

    def tamper(self, answers: Sequence[Answer | Failure]) -> Iterator[Answer | Failure]:
        asked = {request.client.name: request for request in self.requests}  # the last of each
        for answer in answers:
            task, round_ = asked[answer.client.name].task, asked[answer.client.name].round
            if (answer.client.name, task, round_) in self.vanish:
                yield Failure(answer.client, "it vanished")
            else:
                if isinstance(answer, Answer):
                    self.heard[task][answer.client.name] = answer.message
                yield answer


def watched(run: Rehearsal, *vanish: tuple[str, str, int]) -> Watching:
    relay = Watching(SameProcess(run.federation), *vanish)
    run.run(relay)
    return relay


def plain_updates(folder: Path, *layers: Layer) -> dict[str, Any]:
    """What clients send in the first round where nothing is hidden: the seeds are the same."""
    return watched(rehearsal(folder, *layers)).heard["train"]


def exact_mean(updates: dict[str, Any], names: Sequence[str], weighting: str) -> tuple[torch.Tensor, float]:
    """In float64, and the sum of weights."""
    weights = {name: updates[name].samples.value if weighting == "samples" else 1 for name in names}
    total = sum(weights[name] * updates[name].model.flat.double() for name in names)
    return total / sum(weights.values()), sum(weights.values())


# ----------------------------------------------------------------------------------------------------- the sum is right


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_mean_is_off_by_no_more_than_is_stated(tmp_path: Path, weighting: str) -> None:
    updates = plain_updates(tmp_path / "plain")
    run = rehearsal(tmp_path / "sum", SecretSum(), weighting=weighting)
    relay = watched(run)
    exact, weight = exact_mean(updates, SIX, weighting)
    stated = sums.mean_error(len(SIX), weight) + exact.abs() * 2.0**-24  # and float32, which holds the model
    assert ((run.final().double() - exact).abs() <= stated).all()
    losses = [updates[name].training.values["loss"] for name in SIX]
    (event,) = run.notebook.rounds()
    assert event["scalars"] == pytest.approx({"loss": sum(losses) / len(losses)}, abs=1e-7)
    assert set(relay.heard) == {*QUESTIONS, "evaluate"}


@pytest.mark.parametrize("layers", [(), (Clip(norm=0.05),), (Carry(momentum="client", batch_norm="all"),)], ids=str)
def test_two_rounds_end_where_plain_ones_do(tmp_path: Path, layers: Any) -> None:
    plain = rehearsal(tmp_path / "plain", *layers, rounds=2)
    plain = replace(plain, firewall=Firewall(enabled=False)).run()  # that of a secret sum compares nobody either
    secret = rehearsal(tmp_path / "sum", *layers, SecretSum(), rounds=2).run()
    assert torch.allclose(secret.final(), plain.final(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("lost", [("ann",), ("bob", "zoe")], ids=str)
def test_a_third_may_vanish_at_any_moment(tmp_path: Path, question: str, lost: tuple[str, ...]) -> None:
    updates = plain_updates(tmp_path / "plain")
    run = rehearsal(tmp_path / "sum", SecretSum())
    watched(run, *((name, question, 1) for name in lost))
    there = [name for name in SIX if name not in lost or question == "open"]  # by then their vectors have come
    exact, _ = exact_mean(updates, there, "samples")
    assert torch.allclose(run.final().double(), exact, rtol=1e-6, atol=1e-7)
    assert set(run.notebook.rounds()[0]["failed"]) == set(SIX) - set(there)


def test_they_may_vanish_at_different_moments_and_come_back(tmp_path: Path) -> None:
    """The model is that of plain rounds in which the same updates are missing."""
    gone = [("ann", "train", 1), ("bob", "train", 1), ("cat", "train", 2)]
    calmly = {"rounds": 2, "lr": 0.01}  # a higher rate makes much of what the first round is off by
    run, plain = rehearsal(tmp_path / "sum", SecretSum(), **calmly), rehearsal(tmp_path / "plain", **calmly)
    plain = replace(plain, firewall=Firewall(enabled=False))  # that of a secret sum compares nobody either
    watched(run, *gone, ("dan", "open", 2))  # whose vector has come by then
    watched(plain, *gone)
    assert torch.allclose(run.final(), plain.final(), rtol=1e-4, atol=1e-5)
    assert [set(event["failed"]) for event in run.notebook.rounds()] == [{"ann", "bob"}, {"cat"}]


def test_a_client_whose_update_does_not_fit_is_left_out_and_its_masks_with_it(tmp_path: Path) -> None:
    updates = plain_updates(tmp_path / "plain")

    class Short(Watching):
        def tamper(self, answers: Sequence[Answer | Failure]) -> Iterator[Answer | Failure]:
            for answer in super().tamper(answers):
                if isinstance(answer, Answer) and answer.client.name == "dan" and hasattr(answer.message, "model"):
                    model = replace(answer.message.model, values=answer.message.model.values[1:])
                    answer = replace(answer, message=replace(answer.message, model=model))
                yield answer

    run = rehearsal(tmp_path / "sum", SecretSum())
    run.run(Short(SameProcess(run.federation)))
    assert "does not hold" in run.notebook.rounds()[0]["rejected"]["dan"]
    exact, _ = exact_mean(updates, [name for name in SIX if name != "dan"], "samples")
    assert torch.allclose(run.final().double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("neighbours", [2, 4])
def test_neighbourhoods_give_the_same_bits(tmp_path: Path, neighbours: int) -> None:
    everybody = rehearsal(tmp_path / "all", SecretSum()).run()
    some = rehearsal(tmp_path / "some", SecretSum(neighbours=neighbours))
    relay = watched(some)
    assert torch.equal(some.final(), everybody.final())
    assert {len(each.shares.owners) for each in relay.heard["shares"].values()} == {neighbours}


def test_other_transports_and_other_masks_give_the_same_bits(tmp_path: Path) -> None:
    first, second = (rehearsal(tmp_path / name, Clip(norm=0.05), SecretSum(), rounds=2) for name in ("a", "b"))
    first.run()
    workers = WorkerProcesses(second.federation, 2)
    try:
        second.run(workers)
    finally:
        workers.close()
    assert torch.equal(first.final(), second.final())
    assert first.notebook.books["ledger"] == second.notebook.books["ledger"]
    assert first.files() == second.files()  # no secret is left in them
    assert not list(tmp_path.rglob("session*"))


def test_a_run_that_was_killed_within_a_round_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = rehearsal(tmp_path / "whole", SecretSum(), rounds=2).run()
    cut = rehearsal(tmp_path / "cut", SecretSum(), rounds=2)

    class Killed(Relay):
        def noted(self, requests: Any) -> Iterator[Request]:
            for request in requests:
                if (request.task, request.round, request.client.name) == ("open", 2, "dan"):
                    raise KeyboardInterrupt
                yield request

    with pytest.raises(KeyboardInterrupt):
        cut.run(Killed(SameProcess(cut.federation)))
    assert list(tmp_path.rglob("session*"))
    replace(cut).run()
    assert cut.files() == whole.files()
    assert cut.notebook.books["metrics"] == whole.notebook.books["metrics"]


def test_clip_then_noise_then_the_sum(tmp_path: Path) -> None:
    """Differential privacy at the clients, and a server that sees no single noised update either."""
    stack = (Clip(norm=0.05), LocalNoise(norm=0.05, multiplier=0.5, randomness="seed"))
    updates = plain_updates(tmp_path / "plain", *stack)
    run = rehearsal(tmp_path / "sum", *stack, SecretSum())
    relay = watched(run)
    exact, _ = exact_mean(updates, SIX, "uniform")
    plain = rehearsal(tmp_path / "again", *stack).run()
    trained = slice(plain.federation.backbone().layout.trainable_size)  # variances are put right after the mean
    assert torch.allclose(run.final()[trained].double(), exact[trained], rtol=1e-6, atol=1e-7)
    assert torch.allclose(run.final(), plain.final(), rtol=1e-5, atol=1e-6)
    assert set(relay.heard["train"]["ann"].hints()) == {"model"}


def test_noise_at_the_server_wants_to_see_updates() -> None:
    for stack in ((Noise(norm=1.0, multiplier=1.0), SecretSum()), (SecretSum(), Noise(norm=1.0, multiplier=1.0))):
        with pytest.raises(ValueError, match="secret-sum"):
            layered(FedPE(), *stack)


def test_public_embeddings_are_summed_too(tmp_path: Path) -> None:
    algorithm = quickly(FedFR())
    crowd = Crowd(clients=SIX[:4])
    plain = Rehearsal(tmp_path / "plain", (stage_of(algorithm, rounds=1),), crowd, benchmarks=()).run()
    hidden = stage_of(layered(algorithm, SecretSum()), rounds=1)
    secret = Rehearsal(tmp_path / "secret", (hidden,), crowd, benchmarks=()).run()
    assert torch.allclose(secret.final(), plain.final(), rtol=1e-5, atol=1e-6)
    ends = [run.checkpoints.finished("fedfr").public_vectors() for run in (plain, secret)]
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------- what the server learns: the sum


def chi_square(values: np.ndarray) -> float:
    """Of the bytes of numbers, against uniform ones: about 255 for these, with a deviation of 23."""
    counts = np.bincount(np.frombuffer(values.tobytes(), dtype=np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


def test_single_updates_look_uniform_and_the_same_update_never_looks_the_same(tmp_path: Path) -> None:
    first, second = (watched(rehearsal(tmp_path / name, SecretSum())) for name in ("a", "b"))
    updates = plain_updates(tmp_path / "plain")
    for name in SIX:
        vectors = [relay.heard["train"][name].model.values.numpy() for relay in (first, second)]
        for vector in vectors:
            assert chi_square(vector) < 255 + 8 * 23
        assert (vectors[0] != vectors[1]).all()  # though the update under the masks is the same to the bit
        clear = sums.fixed(updates[name].model.flat.double() * updates[name].samples.value, len(SIX))
        assert chi_square(clear) > 10_000  # which such a test would notice
        assert first.heard["train"][name].samples.values != second.heard["train"][name].samples.values
        assert chi_square(vectors[0] - vectors[1]) < 255 + 8 * 23


def test_nothing_but_declared_kinds_reaches_the_server(tmp_path: Path) -> None:
    run = rehearsal(tmp_path, SecretSum()).run()
    up = {entry["payload"] for entry in run.notebook.books["ledger"] if entry["direction"] == "up"}
    hidden = {"MaskedModelState", "MaskedCount", "MaskedScalars"}
    assert up == {"OwnKeys", "SealedShares", "OpenedShares", "Scalars"} | hidden  # Scalars of evaluations
    (event,) = run.notebook.rounds()
    assert "clients" not in event  # figures of single clients


def test_of_each_client_the_server_can_open_its_seed_or_its_key_and_not_both(tmp_path: Path) -> None:
    run = rehearsal(tmp_path, SecretSum())
    relay = watched(run, ("bob", "train", 1))
    for index, name in enumerate(SIX):
        public = as_bytes(relay.heard["keys"][name].keys.content)[sums.PUBLIC :]
        shares = [said.shares.by_owner()[index] for said in relay.heard["open"].values()]
        opened = sums.opened(shares[:4])
        # In the sum: the seed, by which pairwise masks stay. Not in the sum: the key, of masks around nothing.
        assert (sums.public_of(opened) == public) == (name == "bob")
    names = {"ann": 0, "cat": 2}
    updates = plain_updates(tmp_path / "plain")
    for name, index in names.items():
        seed = sums.opened([said.shares.by_owner()[index] for said in relay.heard["open"].values()][:4])
        vector = relay.heard["train"][name].model.values.numpy().copy()
        sums.add_mask(vector, seed, -1)
        clear = sums.fixed(updates[name].model.flat.double() * updates[name].samples.value, len(SIX))
        assert chi_square(vector) < 255 + 8 * 23
        assert (vector != clear).mean() > 0.99


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("shares", "0 of 6 clients returned an acceptable update"),  # clients do not send theirs under so few masks
        ("train", r"3 of 6 clients are in the secret sum, 4 are needed; nothing was opened"),
    ],
)
def test_with_too_few_nothing_is_opened(tmp_path: Path, question: str, words: str) -> None:
    """Half of the clients are enough for the stage, and not for the sum."""
    run = rehearsal(tmp_path, SecretSum(), quorum=0.5)
    relay = Watching(SameProcess(run.federation), *((name, question, 1) for name in SIX[:3]))
    with pytest.raises(QuorumLost, match=words):
        run.run(relay)
    assert not any(request.task == "open" for request in relay.requests)


def test_too_few_shares_open_nothing(tmp_path: Path) -> None:
    run = rehearsal(tmp_path, SecretSum())
    with pytest.raises(QuorumLost, match=r"3 of 6 clients gave the share .* 4 are needed; the sum was not opened"):
        watched(run, *((name, "open", 1) for name in SIX[:3]))


def test_wrong_shares_are_noticed(tmp_path: Path) -> None:
    class Lying(Watching):
        def tamper(self, answers: Sequence[Answer | Failure]) -> Iterator[Answer | Failure]:
            for answer in super().tamper(answers):
                if (
                    isinstance(answer, Answer)
                    and answer.client.name == "ann"
                    and type(answer.message).__name__ == "Opened"
                ):
                    content = answer.message.shares.content.clone()
                    content[:, 10:20] ^= 255
                    shares = replace(answer.message.shares, content=content)
                    answer = replace(answer, message=replace(answer.message, shares=shares))
                yield answer

    run = rehearsal(tmp_path, SecretSum())
    with pytest.raises(QuorumLost, match=r"do not fit|did not cancel"):
        run.run(Lying(SameProcess(run.federation)))


# ----------------------------------------------------------------------------------------- what clients refuse to do


class Conversation:
    """A server that asks what it likes, of clients in this process."""

    def __init__(self, folder: Path, layer: SecretSum, clients: Sequence[str] = SIX) -> None:
        self.run = rehearsal(folder, layer, clients=clients)
        self.host = ClientHost(self.run.federation)
        self.clients = [ClientInfo(name, index) for index, name in enumerate(clients)]
        self.algorithm = self.run.recipe[0].algorithm
        backbone = self.run.federation.backbone()
        self.server = Server(
            initial=backbone.state(),
            backbone=backbone,
            public_faces=None,
            pooled=None,
            generator=torch.Generator().manual_seed(1),
            round=1,
            rounds=1,
            clients=tuple(self.clients),
        )
        self.state = self.algorithm.start(None, self.server)

    def ask(self, task: str, client: ClientInfo, down: Any = None) -> Any:
        if down is None:
            train = task == "train"
            down = (
                self.algorithm.send(self.state, client)
                if train
                else self.algorithm.ask(task, self.state, client, self.clients)
            )
        return self.host.handle(Request(task, "fedpe", 1, client, down)).message

    def all(self, task: str) -> list[Any]:
        replies = [Reply(client, self.ask(task, client)) for client in self.clients]
        assert not [reply for reply in replies if isinstance(reply.up, Trouble)], self.run.problems[-2000:]
        if task != "train":
            self.state = self.algorithm.hear(task, self.state, replies, self.server)
        return [reply.up for reply in replies]

    def refused(self, words: str, *asked: Any) -> None:
        answer = self.ask(*asked)
        assert isinstance(answer, Trouble)
        assert answer.failure.value is Problem.REFUSED
        assert words in self.run.problems


def present(*numbers: int) -> Arrived:
    return Arrived(members=Members(as_numbers(numbers)))


def test_a_client_opens_a_sum_once(tmp_path: Path) -> None:
    """Shares of the seed and of the key of one client would open its update: who gave one never gives the other."""
    talk = Conversation(tmp_path, SecretSum())
    for task in ("keys", "shares", "train"):
        talk.all(task)
    ann = talk.clients[0]
    answer = talk.ask("open", ann, present(0, 1, 2, 3, 4))  # zoe is said to have vanished: a share of her key
    assert sorted(answer.shares.owners.tolist()) == list(range(6))
    talk.refused("come in their order, each once", "open", ann, present(0, 1, 2, 3, 4, 5))  # and now of her seed


def test_a_client_sends_one_vector_under_its_masks(tmp_path: Path) -> None:
    """The difference of two would be in the open."""
    talk = Conversation(tmp_path, SecretSum())
    for task in ("keys", "shares", "train"):
        talk.all(task)
    talk.refused("come in their order, each once", "train", talk.clients[0])


def test_a_client_answers_in_order(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, SecretSum())
    talk.refused("come in their order", "train", talk.clients[0])
    talk.all("keys")
    talk.refused("come in their order", "train", talk.clients[0])
    talk.all("shares")
    talk.refused("come in their order", "open", talk.clients[0], present(*range(6)))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ((0, 1, 2), "3 of 6 clients are in the secret sum, 4 are needed"),
        ((1, 2, 3, 4, 5), "names others"),  # without the client itself
        ((0, 1, 2, 3, 4, 5, 6), "names others"),  # with a stranger
    ],
)
def test_a_client_does_not_open_what_would_say_too_much(tmp_path: Path, members: tuple[int, ...], words: str) -> None:
    talk = Conversation(tmp_path, SecretSum())
    for task in ("keys", "shares", "train"):
        talk.all(task)
    talk.refused(words, "open", talk.clients[0], present(*members))


def test_a_client_does_not_open_a_sum_that_falls_apart(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, SecretSum(neighbours=2))
    for task in ("keys", "shares", "train"):
        talk.all(task)
    order = talk.state.circle.order.tolist()
    left = [order[place] for place in (0, 1, 3, 4)]  # two pairs, with a gap on both sides
    client = next(each for each in talk.clients if each.index == order[0])
    talk.refused("the sums of parts of the clients would be open", "open", client, present(*left))


def test_a_client_does_not_send_an_update_under_few_masks(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, SecretSum())
    talk.all("keys")
    talk.all("shares")
    ann = talk.clients[0]
    down = talk.algorithm.send(talk.state, ann)
    few = replace(down.dealt, owners=down.dealt.owners[:2], content=down.dealt.content[:2])
    talk.refused("too few neighbours take part", "train", ann, replace(down, dealt=few))
    talk.refused("too few neighbours take part", "train", ann, replace(down, dealt=None))


def test_a_client_does_not_take_part_in_a_sum_of_two(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, SecretSum(), clients=SIX[:2])
    talk.all("keys")
    talk.refused("3 are the least", "shares", talk.clients[0])


def test_a_question_may_begin_anew_with_other_keys(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, SecretSum())
    first, second = (talk.ask("keys", talk.clients[0], Begin()) for _ in range(2))
    assert not torch.equal(first.keys.content, second.keys.content)


# ------------------------------------------------------------------------------------------------- experiment files


def experiment(layers: list[Any], **more: Any) -> dict[str, Any]:
    stage = {"name": "a", "algorithm": {"name": "fedpe"}, "layers": layers, **more.pop("stage", {})}
    data = {"private": {"identities": 6}}
    return {"name": "x", "data": data, "partition": {"by": "equal", "clients": 3}, "stages": [stage], **more}


def test_an_experiment_file_names_the_layer() -> None:
    layers = [{"name": "clip", "norm": 1.0}, {"name": "secret-sum", "neighbours": 4}]
    read = parse_experiment(experiment(layers), "x.toml")
    assert read.recipe[0].layers == (Clip(norm=1.0), SecretSum(neighbours=4))
    assert parse_experiment(read.resolved(), "again").recipe == read.recipe


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"firewall": {"norm_multiple": 3.0}}, r"firewall.norm_multiple checks single updates, .* the layer clip"),
        ({"stage": {"aggregation": {"name": "median"}}}, "it looks at single updates, which layer secret-sum hides"),
        ({"stage": {"algorithm": {"name": "fedgc"}}}, r"keeps class_embeddings \(ClassEmbeddings\) of every client"),
        ({"stage": {"algorithm": {"name": "q_fedavg"}}}, "weighs them by more than their samples"),
        (
            {"stage": {"selection": {"name": "highest-loss", "clients": 2, "candidates": 3}}},
            "needs the loss of clients, which fedpe with secret-sum does not disclose",
        ),
        (
            {"stage": {"layers": [{"name": "secret-sum", "threshold": 0.5}]}},
            r"is 0.5, it must be in \(0.5, 1\]",
        ),
        ({"stage": {"layers": [{"name": "secret-sum", "least": 2}]}}, "either client can tell the other's part"),
        ({"stage": {"layers": [{"name": "secret-sum", "neighbours": 3}]}}, "it must be even"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(more: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_experiment(experiment([{"name": "secret-sum"}], **more), "x.toml")


def test_a_cohort_of_two_is_refused_before_the_run(tmp_path: Path) -> None:
    run = rehearsal(tmp_path, SecretSum(), selection=FixedCount(clients=2))
    with pytest.raises(ConfigError, match="layer secret-sum takes at least 3 clients, and 2 of 6 are asked"):
        run.run()
