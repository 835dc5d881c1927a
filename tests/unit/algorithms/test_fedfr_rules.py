"""What FedFR and local adaptation do beyond what every algorithm must."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import ALGORITHMS, Adapt, Central, FedFR, FedPE, Pretrain
from personae.algorithms import adapt as adapting
from personae.algorithms import fedfr as federating
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.holdings import ClientFaces
from personae.core.payload import Count, Expectation, ModelState, PublicEmbeddings, Scalars
from personae.core.rng import generator
from personae.core.wire import payload_bytes
from personae.errors import ConfigError, Diverged, QuorumLost
from personae.parts.embedding import class_features
from personae.parts.margins import Margin
from personae.parts.public import PublicSampling
from personae.privacy.disclosure import message_bytes, sends
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Answer, Request
from toys import NAMES, PUBLIC, Crowd, Rehearsal, Relay, quickly, random_faces, stage_of

HALF = PublicSampling(threshold=0.4)


def fedfr(**options) -> FedFR:
    return quickly(FedFR(**{"sampling": HALF, **options}))


def rehearse(folder: Path, *algorithms, rounds: int = 2, **options) -> Rehearsal:
    return Rehearsal(folder, tuple(stage_of(each, rounds=rounds) for each in algorithms), **options)


def private(run: Rehearsal, client: str, algorithm=FedFR):
    layout = run.federation.backbone().layout
    return PrivateStore.of(run.folder / "private", client).load(algorithm.name, algorithm.types.private, layout)


class Listening(Relay):
    """Keeps every answer."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.answers = []

    def tamper(self, answers):
        self.answers += answers
        return answers

    def ups(self, kind=federating.Up):
        return [each for each in self.answers if isinstance(each, Answer) and isinstance(each.message, kind)]


# --------------------------------------------------------------------------------------------------------------- Phi


def test_phi_is_averaged_at_the_server_and_sent_out_again(tmp_path: Path):
    """Equation 4, which the authors' own code leaves out by a misspelt name."""
    run = rehearse(tmp_path, fedfr(), rounds=3)
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    sent = {}
    for request in transport.requests:
        if request.task == "train":
            sent.setdefault(request.round, request.down.public_embeddings.vectors)
            assert torch.equal(request.down.public_embeddings.vectors, sent[request.round])  # the same for everybody
    assert not torch.equal(sent[1], sent[2])
    assert not torch.equal(sent[2], sent[3])
    ups = [answer.message for answer in transport.ups()]
    for round_ in (1, 2):
        these = ups[4 * (round_ - 1) : 4 * round_]
        weights = torch.tensor([up.samples.value for up in these], dtype=torch.float64)
        mean = (
            sum(weight * up.public_embeddings.vectors.double() for weight, up in zip(weights, these, strict=True))
            / weights.sum()
        )
        assert (sent[round_ + 1] - mean).abs().max() < 1e-6
        assert (
            len({up.public_embeddings.vectors.sum().item() for up in these}) == 4
        )  # every client moves Phi its own way


def test_phi_begins_as_pre_training_left_it(tmp_path: Path):
    run = rehearse(tmp_path, quickly(Pretrain()), fedfr())
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    first = next(request for request in transport.requests if request.stage == "fedfr" and request.task == "train")
    assert torch.equal(first.down.public_embeddings.vectors, run.checkpoints.finished("pretrain").class_embeddings)


@pytest.mark.parametrize("before", [Central, FedPE])
def test_phi_is_never_made_of_private_people(tmp_path: Path, before):
    """After other stages it begins as the mean features of the public people, also where the server has other rows."""
    run = rehearse(tmp_path, quickly(before()), fedfr())
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    backbone = run.federation.backbone()
    backbone.load(run.checkpoints.finished(before.name).model)
    first = next(request for request in transport.requests if request.stage == "fedfr" and request.task == "train")
    assert torch.equal(first.down.public_embeddings.vectors, class_features(backbone, PUBLIC))


def test_adaptation_continues_with_the_phi_of_the_run_before(tmp_path: Path):
    run = rehearse(tmp_path, fedfr(), quickly(Adapt(sampling=HALF)))
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    first = next(request for request in transport.requests if request.stage == "adapt")
    assert torch.equal(
        first.down.public_embeddings.vectors, run.checkpoints.finished("fedfr").public_embeddings.vectors
    )


def test_a_reply_without_phi_leaves_it_as_it_is_known(tmp_path: Path):
    backbone = rehearse(tmp_path, fedfr()).federation.backbone()
    server = Server(backbone.state(), backbone, None, None, torch.Generator(), round=1, rounds=1)
    known = PublicEmbeddings(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    state = federating.State(model=backbone.state(), public_embeddings=known)
    up = federating.Up(model=state.model, public_embeddings=None, samples=Count(3), training=Scalars({}))
    moved = replace(up, public_embeddings=PublicEmbeddings(known.vectors + 1))
    replies = [Reply(ClientInfo(name, at), each) for at, (name, each) in enumerate({"ann": up, "bob": moved}.items())]
    merged = FedFR().merge(state, iter(replies), server)
    assert torch.allclose(merged.public_embeddings.vectors, known.vectors + 0.5)
    assert torch.equal(merged.model.flat, state.model.flat)


def test_the_firewall_refuses_public_embeddings_of_another_size(tmp_path: Path):
    @dataclass
    class Cropped(Relay):
        inner: object
        requests: list

        def tamper(self, answers):
            for answer in answers:
                if answer.client.name == "bob" and isinstance(answer.message, federating.Up):
                    rows = PublicEmbeddings(answer.message.public_embeddings.vectors[:-1])
                    answer = Answer(answer.client, replace(answer.message, public_embeddings=rows))
                yield answer

    run = rehearse(tmp_path, fedfr())
    run.run(Cropped(SameProcess(run.federation), []))
    for event in run.notebook.rounds():
        assert event["rejected"] == {"bob": "its public embeddings are 3 rows of 8 numbers, not 4 of 8"}


# ---------------------------------------------------------------------------------------------------------- switches


def messages_and_states(run: Rehearsal):
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    return [answer.message for answer in transport.ups()], [private(run, name) for name in NAMES]


def test_with_everything_off_it_is_plain_averaging_with_local_models(tmp_path: Path):
    plain = rehearse(tmp_path / "plain", fedfr(use_public_faces=False, contrast=0.0, customise=0.0))
    ups, kept = messages_and_states(plain)
    assert all(up.public_embeddings is None for up in ups)
    assert all(each.branch == {} for each in kept)
    # The same arithmetic as FedPE's, whose stage goes by the same name here so that random numbers are the same.
    stage = stage_of(quickly(FedPE()), name="fedfr")
    other = Rehearsal(tmp_path / "other", (stage,)).run()
    assert torch.equal(plain.final(), other.final())


def test_each_part_changes_the_result_and_only_that_part_needs_what_it_needs(tmp_path: Path):
    off = {"use_public_faces": False, "contrast": 0.0, "customise": 0.0}
    finals = {}
    for name, on in {"none": {}, "public": {"use_public_faces": True}, "contrast": {"contrast": 5.0}}.items():
        finals[name] = rehearse(tmp_path / name, fedfr(**{**off, **on})).run().final()
    finals["customise"] = rehearse(tmp_path / "customise", fedfr(**{**off, "customise": 10.0})).run().final()
    values = list(finals.values())
    assert all(not torch.equal(a, b) for at, a in enumerate(values) for b in values[at + 1 :])


def test_the_contrastive_term_is_left_out_the_first_time_and_works_from_then_on(tmp_path: Path):
    runs = {}
    for contrast in (0.0, 5.0):
        for rounds in (1, 2):
            run = rehearse(tmp_path / f"{contrast}-{rounds}", fedfr(contrast=contrast), rounds=rounds)
            runs[contrast, rounds] = run.run()
    assert torch.equal(runs[0.0, 1].final(), runs[5.0, 1].final())
    assert not torch.equal(runs[0.0, 2].final(), runs[5.0, 2].final())


def test_a_threshold_of_minus_one_takes_all_public_faces_and_of_one_none(tmp_path: Path):
    shares = {}
    for threshold in (-1.0, 0.4, 1.0):
        run = rehearse(tmp_path / str(threshold), fedfr(sampling=PublicSampling(threshold=threshold))).run()
        shares[threshold] = run.notebook.rounds()[0]["scalars"]["public_share"]
    assert shares[-1.0] == 1
    assert 0 < shares[0.4] < 1
    assert shares[1.0] == 0


def test_the_threshold_is_the_margin_unless_it_is_given(tmp_path: Path):
    runs = {}
    for name, sampling in (
        ("default", PublicSampling()),
        ("given", PublicSampling(threshold=0.3)),
        ("other", PublicSampling(threshold=0.4)),
    ):
        runs[name] = rehearse(tmp_path / name, fedfr(sampling=sampling, margin=Margin(margin=0.3))).run()
    assert torch.equal(runs["default"].final(), runs["given"].final())
    assert not torch.equal(runs["default"].final(), runs["other"].final())


def test_counting_public_faces_changes_the_weights(tmp_path: Path):
    own, all_ = (rehearse(tmp_path / counts, fedfr(counts=counts)) for counts in ("own", "all"))
    by_own, by_all = messages_and_states(own)[0], messages_and_states(all_)[0]
    assert [up.samples.value for up in by_own[:4]] == [len(Crowd().of(name).train) for name in NAMES]
    assert all(more.samples.value > few.samples.value for more, few in zip(by_all[:4], by_own[:4], strict=True))


@pytest.mark.parametrize("kind", [FedFR, Adapt])
def test_without_public_faces_no_public_embeddings_cross(tmp_path: Path, kind):
    run = rehearse(tmp_path, quickly(kind(use_public_faces=False)))
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    assert all(request.down.public_embeddings is None for request in transport.requests)
    assert not any(entry["payload"] == "PublicEmbeddings" for entry in run.notebook.books["ledger"])
    assert "PublicEmbeddings" not in sends(kind(use_public_faces=False))
    assert ("PublicEmbeddings" in sends(kind())) == (kind is FedFR)


def test_the_size_of_a_message_is_known_before_there_is_one(tmp_path: Path):
    run = rehearse(tmp_path, fedfr(), rounds=1)
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    layout = run.federation.backbone().layout
    found = sum(payload_bytes(transport.ups()[0].message).values())
    expected = Expectation(layout=layout, width=8, classes=3, public_classes=PUBLIC.classes)
    # of figures one is foreseen, and two are sent
    assert found == message_bytes(FedFR.types.up, expected) + 8
    assert message_bytes(FedFR.types.up, expected, frozenset({"public_embeddings"})) == 4 * layout.size + 16


# ---------------------------------------------------------------------------------------------------- personal models


def evaluate(run: Rehearsal) -> dict[str, dict[str, float]]:
    return [event for event in run.notebook.books["metrics"] if event["event"] == "personal"][-1]["clients"]


def test_the_branch_begins_as_the_identity_over_the_class_embeddings(tmp_path: Path):
    """With so small a rate that nothing moves, the personal model is the local backbone."""
    slow = replace(fedfr(), training=replace(fedfr().training, lr=1e-12, weight_decay=0.0))
    run = rehearse(tmp_path, slow, rounds=1)
    run.run()
    kept = private(run, "eve")
    assert torch.allclose(kept.branch["transform"], torch.eye(8))
    assert not kept.branch["shift"].abs().gt(1e-6).any()
    assert torch.allclose(kept.branch["classifiers"], kept.class_embeddings)
    assert not kept.branch["bias"].abs().gt(1e-6).any()


@pytest.mark.parametrize("beginning", ["random", "mean"])
def test_class_embeddings_begin_as_they_are_told_to(tmp_path: Path, beginning: str):
    still = replace(fedfr(head_init=beginning), training=replace(fedfr().training, lr=1e-12, weight_decay=0.0))
    run = rehearse(tmp_path, still, rounds=1).run()
    backbone = run.federation.backbone()
    for name in NAMES:
        own = Crowd().of(name).train
        random = torch.randn(own.classes, 8, generator=generator(run.seed, "fedfr", 1, name, "train"))
        expected = class_features(backbone, own) if beginning == "mean" else F.normalize(random, dim=1)
        assert torch.allclose(private(run, name).class_embeddings, expected, atol=1e-6)


def test_someone_who_never_took_part_uses_the_global_model(tmp_path: Path):
    run = rehearse(tmp_path, fedfr(), quickly(Adapt(sampling=HALF)), holdings=Crowd(newcomers=frozenset(["zoe"])))
    run.run()
    for event in run.notebook.books["metrics"]:
        if event["event"] == "personal":
            figures = event["clients"]["zoe"]
            assert {name: value for name, value in figures.items() if name.startswith("global")} == {
                name.replace("personal", "global"): value
                for name, value in figures.items()
                if name.startswith("personal")
            }


def test_adaptation_changes_no_global_model_and_sends_a_figure_alone(tmp_path: Path):
    run = rehearse(tmp_path, fedfr(), quickly(Adapt(sampling=HALF)))
    transport = Listening(SameProcess(run.federation))
    run.run(transport)
    assert torch.equal(run.final("adapt"), run.final("fedfr"))
    ups = transport.ups(adapting.Up)
    assert len(ups) == 8
    assert all(set(up.message.training.values) == {"loss"} for up in ups)
    for name in NAMES:
        assert not torch.equal(private(run, name, Adapt).model.flat, run.final("fedfr"))


@pytest.mark.parametrize("before", [kind for kind in ALGORITHMS.values() if kind.federated and kind is not Adapt])
def test_adaptation_follows_any_federated_run(tmp_path: Path, before: type):
    run = rehearse(
        tmp_path, quickly(before()), quickly(Adapt(sampling=HALF, method="distil")), rounds=1, source=NAMES[0]
    )
    run.run()
    assert torch.equal(run.final("adapt"), run.final(before.name))
    host, stage = ClientHost(run.federation), run.recipe[-1]
    for name in NAMES:
        kept = private(run, name, Adapt)
        assert not torch.equal(kept.model.flat, run.final(before.name))
        info = ClientInfo(name, NAMES.index(name))
        down = stage.algorithm.send(run.checkpoints.finished("adapt"), info)
        used = host.personal(Request("evaluate", "adapt", 1, info, down)).backbone.flat
        assert torch.equal(used, kept.model.flat)


# ------------------------------------------------------------------------------------------------------------ trouble


def test_without_public_faces_it_says_what_to_do(tmp_path: Path):
    run = rehearse(tmp_path, fedfr())
    with pytest.raises(ConfigError, match=r"add \[data.public\] to the experiment, or set use_public_faces = false"):
        replace(run.engine(), public=None).run()


def test_a_client_without_public_faces_is_named(tmp_path: Path):
    run = rehearse(tmp_path, fedfr())
    transport = SameProcess(replace(run.federation, public=None))
    with pytest.raises(QuorumLost, match="ann: it cannot carry out this experiment as it is set up"):
        run.run(transport)
    assert "ann has no public faces to train with" in (run.federation.private / "problems.log").read_text()


class Alone(Crowd):
    """Everybody holds one person."""

    def of(self, client: str) -> ClientFaces:
        faces = random_faces(50 + self.clients.index(client), 1, 6)
        return ClientFaces(faces, faces, faces)


@pytest.mark.parametrize(
    ("mode", "threshold", "frozen"),
    [("auto", 1.0, True), ("auto", -1.0, False), ("eval", -1.0, True), ("train", 1.0, False)],
)
@pytest.mark.parametrize("kind", [FedFR, Adapt])
def test_statistics_of_batch_norm_stay_where_they_should(
    tmp_path: Path, kind: type, mode: str, threshold: float, frozen: bool
):
    """By default where one identity is alone: with public faces in its batches it has other people to normalise by."""
    algorithm = quickly(kind(sampling=PublicSampling(threshold=threshold), batch_norm=mode))
    run = rehearse(tmp_path, algorithm, holdings=Alone(), rounds=1)
    before = run.federation.backbone().state()
    run.run()
    size = before.layout.trainable_size
    after = private(run, "eve", kind).model.flat
    assert torch.equal(after[size:], before.flat[size:]) == frozen
    assert not torch.equal(after[:size], before.flat[:size])


@pytest.mark.parametrize(
    "wrong", [{"classify": 0.0}, {"contrast": -1.0}, {"customise": float("inf")}, {"temperature": 0.0}]
)
def test_options_without_meaning_are_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .* must be (positive|finite)"):
        FedFR(**wrong)


def test_more_options_without_meaning_are_refused():
    with pytest.raises(ValueError, match=r"temperature is 0\.0, it must be positive"):
        Adapt(temperature=0.0)
    with pytest.raises(ValueError, match=r"threshold is 1.5, it must be in \[-1, 1\]"):
        PublicSampling(threshold=1.5)


def test_an_untrained_network_that_overflows_is_told_as_divergence(tmp_path: Path):
    run = rehearse(tmp_path, fedfr())
    broken = run.federation.backbone().state()
    with pytest.raises(Diverged, match=r"not finite under the model to start from; pre-train it first"):
        replace(run.engine(), initial=ModelState(broken.layout, broken.flat * 1e30)).run()
