"""Layers with noise: bounds that hold exactly, noise of the right strength, nothing that leaves besides."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.algorithms import ALGORITHMS, FedFace, FedGC, FedPE
from personae.core.algorithm import AnyAlgorithm, ClientInfo, Reply, Server
from personae.core.layer import Layer, Layered, layered
from personae.core.payload import ModelState, ModelWithoutBatchNorm
from personae.errors import ConfigError
from personae.layers import Carry, LocalNoise, Noise, SecretSum
from personae.layers.noise import Within
from personae.parts.secret_noise import gaussian, new_key
from personae.runtime.inprocess import SameProcess
from personae.selection import Poisson
from toys import Rehearsal, Relay, TinyPlan, quickly, stage_of

BOUND = 0.02
SILENT = 1e-9  # a multiplier: noise that is not there


class Listening(Relay):
    """Notes what clients received and sent."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sent: dict[tuple[int, str], Any] = {}

    def tamper(self, answers: Any) -> Any:
        for answer in answers:
            request = next(each for each in reversed(self.requests) if each.client == answer.client)
            if request.task == "train":
                self.sent[request.round, answer.client.name] = request.down, answer.message
        return answers


def run(folder: Path, *layers: Layer, algorithm: AnyAlgorithm | None = None, rounds: int = 1, **options: Any) -> Any:
    stage = stage_of(layered(quickly(algorithm or FedPE()), *layers), rounds=rounds, **options)
    rehearsal = Rehearsal(folder, (stage,))
    transport = Listening(SameProcess(rehearsal.federation))
    return rehearsal.run(transport), transport.sent


def ways(sent: dict[Any, Any]) -> list[torch.Tensor]:
    return [up.model.flat.double() - down.model.entries(up.model.layout).double() for down, up in sent.values()]


def test_what_leaves_is_a_bounded_model_and_nothing_else(tmp_path: Path) -> None:
    _, plain = run(tmp_path / "plain")
    rehearsal, sent = run(tmp_path / "noise", Noise(norm=BOUND, multiplier=1.0, randomness="seed"))
    assert all(float(way.norm()) > BOUND for way in ways(plain))
    for place, (_, up) in sent.items():
        assert set(up.hints()) == {"model"}
        full = plain[place][1].model.flat.double() - plain[place][0].model.flat.double()
        (way,) = ways({place: sent[place]})
        assert float(way.norm()) == pytest.approx(BOUND, rel=1e-4)
        assert float(way @ full / way.norm() / full.norm()) == pytest.approx(1, abs=1e-6)
    assert rehearsal.notebook.rounds()[0]["scalars"] == {}  # no losses


def test_without_noise_it_is_the_mean_in_which_all_weigh_the_same(tmp_path: Path) -> None:
    """Clients of the toys have 6 to 15 samples; of an expected cohort of 4, all four answer."""
    rehearsal, sent = run(tmp_path, Noise(norm=BOUND, multiplier=SILENT, randomness="seed"))
    begin = rehearsal.federation.backbone().state().flat.double()
    assert torch.allclose(rehearsal.final().double(), begin + torch.stack(ways(sent)).mean(0), atol=1e-6)


def test_the_sum_is_divided_by_the_expected_cohort_whoever_answers(tmp_path: Path) -> None:
    layer = Noise(norm=BOUND, multiplier=SILENT, randomness="seed")
    rehearsal, sent = run(tmp_path, layer, selection=Poisson(rate=0.3))
    begin = rehearsal.federation.backbone().state().flat.double()
    assert len(sent) not in (0, 1), "choose another seed: the cohort is the expected one"
    assert torch.allclose(rehearsal.final().double(), begin + torch.stack(ways(sent)).sum(0), atol=1e-6)


def test_nobody_is_hidden_by_a_round_without_noise(tmp_path: Path) -> None:
    """A round in which nobody was asked is noised like any other."""
    rehearsal, sent = run(
        tmp_path, Noise(norm=1.0, multiplier=1.0, randomness="seed"), selection=Poisson(rate=1e-9), rounds=1
    )
    assert sent == {}
    moved = rehearsal.final() - rehearsal.federation.backbone().state().flat
    weights = moved[: rehearsal.federation.backbone().layout.trainable_size]
    assert float(weights.std()) == pytest.approx(1.0, rel=0.1)


def merged(layer: Noise, models: list[torch.Tensor], rounds: range, cohort: int, **more: Any) -> torch.Tensor:
    """What the server adds to a model of zeros in each of these rounds."""
    algorithm = Layered(inner=quickly(FedPE()), layer=layer)
    backbone = federation_backbone()
    begin = ModelState(backbone.layout, torch.zeros(backbone.layout.size))
    source = torch.Generator().manual_seed(5)
    server = Server(begin, backbone, None, None, source, 0, len(rounds), cohort=cohort)
    state = algorithm.start(None, server)
    replies = [
        Reply(ClientInfo(f"c{n}", n), algorithm.types.up(model=ModelState(backbone.layout, flat), **more))
        for n, flat in enumerate(models)
    ]
    return torch.stack([algorithm.merge(state, replies, replace(server, round=each)).model.flat for each in rounds])


def federation_backbone() -> Any:
    from personae.core.backbone import Backbone

    return Backbone(TinyPlan().build(), 8)


def test_the_noise_is_as_strong_as_it_says() -> None:
    layer, cohort = Noise(norm=3.0, multiplier=0.7, randomness="seed"), 5
    size, trainable = federation_backbone().layout.size, federation_backbone().layout.trainable_size
    noise = merged(layer, [torch.zeros(size)] * 2, range(1, 101), cohort)[:, :trainable].double()
    count = noise.numel()
    assert abs(float(noise.mean())) < 4 * 3 * 0.7 / cohort / math.sqrt(count)
    assert float(noise.std()) == pytest.approx(3 * 0.7 / cohort, rel=4 / math.sqrt(2 * count))
    assert abs(float(torch.corrcoef(noise[:2])[0, 1])) < 4 / math.sqrt(trainable)  # no round has that of another
    kurtosis = float((noise / noise.std()).pow(4).mean())
    assert kurtosis == pytest.approx(3, abs=4 * math.sqrt(24 / count))


def test_one_client_changes_the_sum_by_no_more_than_the_bound_whatever_it_sends() -> None:
    size = federation_backbone().layout.size
    layer = Noise(norm=0.5, multiplier=1.0, randomness="seed")
    crowd = [torch.randn(size, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    for liar in (1e6 * torch.ones(size), crowd[0], torch.zeros(size)):
        with_it, without = (merged(layer, each, range(1, 2), 4)[0].double() for each in ([*crowd, liar], crowd))
        trainable = federation_backbone().layout.trainable_size
        assert float((with_it - without)[:trainable].norm()) * 4 <= 0.5 * (1 + 1e-5)


def test_a_bound_follows_the_quantile_of_lengths() -> None:
    """Four of ten updates are within 1; with a quantile of a half the bound rises, and noise blurs how far."""
    size, cohort = federation_backbone().layout.size, 10
    layer = Noise(norm=1.0, multiplier=0.5, quantile=0.5, rate=0.2, randomness="seed")
    algorithm = Layered(inner=quickly(FedPE()), layer=layer)
    backbone = federation_backbone()
    begin = ModelState(backbone.layout, torch.zeros(size))
    server = Server(begin, backbone, None, None, torch.Generator().manual_seed(5), 0, 400, cohort=cohort)
    state = algorithm.start(None, server)
    replies = [
        Reply(ClientInfo(f"c{n}", n), algorithm.types.up(model=begin, within=Within(n < 4))) for n in range(cohort)
    ]
    bounds = [algorithm.merge(state, replies, replace(server, round=each)).bound for each in range(1, 401)]
    steps = torch.tensor(bounds).log().double()
    assert float(steps.mean()) == pytest.approx(0.2 * (0.5 - 0.4), abs=4 * 0.2 * 0.05 / 20)
    assert float(steps.std()) == pytest.approx(0.2 * 0.05, rel=4 / math.sqrt(800))  # s / m = 1 / 20
    noise = torch.stack([algorithm.merge(state, replies, replace(server, round=n)).model.flat for n in range(1, 30)])
    noise = noise[:, : backbone.layout.trainable_size].double()
    expected = (0.5**-2 - (2 * 0.5) ** -2) ** -0.5 / cohort  # s = 10 / 20
    assert float(noise.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * noise.numel()))


def test_clients_are_told_the_bound_and_say_whether_they_keep_to_it(tmp_path: Path) -> None:
    layer = Noise(norm=BOUND, multiplier=0.1, quantile=0.9, rate=3.0, randomness="seed")
    _, sent = run(tmp_path, layer, rounds=3)
    told = {place[0]: down.bound.values["bound"] for place, (down, _) in sent.items()}
    assert told[1] == BOUND
    assert BOUND < told[2] < told[3]
    for place, (_, up) in sent.items():
        (way,) = ways({place: sent[place]})
        assert float(way.norm()) <= told[place[0]] * (1 + 1e-4)
        assert up.within.value == (float(way.norm()) < told[place[0]] * (1 - 1e-4))


def test_a_quantile_takes_enough_clients(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes a multiplier below 0.4 with 4 clients in a round"):
        run(tmp_path, Noise(norm=1.0, multiplier=1.0, quantile=0.5))


def test_what_stays_with_a_client_gets_no_noise(tmp_path: Path) -> None:
    carry = Carry(batch_norm="all")
    rehearsal, sent = run(tmp_path, carry, Noise(norm=BOUND, multiplier=5.0, randomness="seed"))
    assert {type(up.model) for _, up in sent.values()} == {ModelWithoutBatchNorm}
    assert all(float(way.norm()) <= BOUND * (1 + 1e-4) for way in ways(sent))
    backbone = rehearsal.federation.backbone()
    before, after = backbone.layout.views(backbone.state().flat), backbone.layout.views(rehearsal.final())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(backbone.layout.names) - backbone.layout.batch_norm


def test_no_running_variance_becomes_negative(tmp_path: Path) -> None:
    for layer in (
        Noise(norm=1.0, multiplier=100.0, randomness="seed"),
        LocalNoise(norm=1.0, multiplier=100.0, randomness="seed"),
    ):
        rehearsal, _ = run(tmp_path / layer.name, layer)
        views = rehearsal.federation.backbone().layout.views(rehearsal.final())
        assert all(float(view.min()) > 0 for name, view in views.items() if name.endswith("running_var"))


def test_the_noise_of_a_client_is_its_own(tmp_path: Path) -> None:
    quiet, loud = (LocalNoise(norm=BOUND, multiplier=z, randomness="seed") for z in (SILENT, 5.0))
    _, without = run(tmp_path / "quiet", quiet)
    _, within = run(tmp_path / "loud", loud)
    noises = [way - other for way, other in zip(ways(within), ways(without), strict=True)]
    for noise in noises:
        assert float(noise.std()) == pytest.approx(5 * BOUND, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(torch.corrcoef(torch.stack(noises[:2]))[0, 1])) < 4 / math.sqrt(len(noises[0]))
    assert {tuple(up.hints()) for _, up in within.values()} == {("model",)}


def test_secret_noise_is_another_in_every_run_and_kept_for_the_resumed(tmp_path: Path) -> None:
    layer = Noise(norm=BOUND, multiplier=1.0)
    assert layer.randomness == "secret"
    first, _ = run(tmp_path / "first", layer)
    second, _ = run(tmp_path / "second", layer)
    assert not torch.equal(first.final(), second.final())
    kept = first.checkpoints.finished(first.recipe[0].name)
    assert kept.noise_key.shape == (32,)


def test_gaussian_numbers_depend_on_key_and_purpose_alone() -> None:
    source = torch.Generator().manual_seed(1)
    key, other = new_key("seed", source), new_key("seed", source)
    numbers = gaussian(key, "a", 3_000_001)
    assert torch.equal(numbers[:100], gaussian(key, "a", 3_000_001)[:100])
    for unlike in (gaussian(key, "b", 1000), gaussian(other, "a", 1000)):
        assert abs(float(torch.corrcoef(torch.stack([numbers[:1000], unlike]))[0, 1])) < 0.13
    edges = torch.tensor([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    expected = torch.special.ndtr(edges)
    share = (numbers[:, None] <= edges).double().mean(0)
    assert torch.all((share - expected).abs() < 4 * (expected * (1 - expected) / len(numbers)).sqrt())


@pytest.mark.parametrize("layer", [Noise(norm=1.0, multiplier=1.0), LocalNoise(norm=1.0, multiplier=1.0)])
class TestRefusals:
    @pytest.mark.parametrize("algorithm", [FedGC(), FedFace(), ALGORITHMS["fedavg"]()])
    def test_templates_without_noise(self, layer: Layer, algorithm: AnyAlgorithm) -> None:
        with pytest.raises(ValueError, match=r"\(ClassEmbeddings\) besides: a template of every person"):
            layered(algorithm, layer)

    def test_other_payloads(self, layer: Layer) -> None:
        with pytest.raises(ValueError, match=r"sends public_embeddings|\(PublicEmbeddings\) besides"):
            layered(ALGORITHMS["fedfr"](), layer)
        with pytest.raises(ValueError, match=r"control_variate \(Gradient\) besides"):
            layered(FedPE(), Carry(control_variates=True), layer)
        with pytest.raises(ValueError, match="does not take a plain mean"):
            layered(ALGORITHMS["q_fedavg"](), layer)

    def test_no_model(self, layer: Layer) -> None:
        with pytest.raises(ValueError, match=r"send none"):
            layered(ALGORITHMS["cluster"](), layer)

    def test_secret_sums_around_it_and_inside(self, layer: Layer) -> None:
        if isinstance(layer, Noise):
            with pytest.raises(ValueError, match=r"the server limits their lengths and adds noise\. Take local-noise"):
                layered(FedPE(), layer, SecretSum())
        else:
            layered(FedPE(), layer, SecretSum())
        with pytest.raises(ValueError, match="put local-noise before secret-sum"):
            layered(FedPE(), SecretSum(), layer)

    def test_noise_twice(self, layer: Layer) -> None:
        other = LocalNoise(norm=1.0, multiplier=1.0) if isinstance(layer, Noise) else Noise(norm=1.0, multiplier=1.0)
        with pytest.raises(ValueError, match="adds noise already"):
            layered(FedPE(), other, layer)

    def test_templates_that_stay_are_no_reason(self, layer: Layer) -> None:
        assert layered(FedGC(regulariser="none"), layer).withheld == {"class_embeddings", "aliases"}


def test_robust_rules_are_refused_at_a_server_that_adds_noise() -> None:
    from personae.aggregation import Median

    with pytest.raises(ConfigError, match="defined by weighted means"):
        stage_of(layered(FedPE(), Noise(norm=1.0, multiplier=1.0)), aggregation=Median())
    stage_of(layered(FedPE(), LocalNoise(norm=1.0, multiplier=1.0)), aggregation=Median())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Noise, {"norm": 0.0, "multiplier": 1.0}),
        (Noise, {"norm": 1.0, "multiplier": 0.0}),
        (Noise, {"norm": 1.0, "multiplier": 1.0, "quantile": 1.0}),
        (Noise, {"norm": 1.0, "multiplier": 1.0, "quantile": 0.5, "rate": 0.0}),
        (LocalNoise, {"norm": math.inf, "multiplier": 1.0}),
        (LocalNoise, {"norm": 1.0, "multiplier": math.inf}),
        (LocalNoise, {"norm": 1.0, "multiplier": 1.0, "pooling": 0}),
    ],
)
def test_impossible_settings_are_refused(kind: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        kind(**options)
