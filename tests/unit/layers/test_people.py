"""Noise for people: one person more or less moves what a client sends by no more than the bound, and nobody else."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.algorithms import ALGORITHMS, FedPE
from personae.core.algorithm import Carried, Client, ClientInfo
from personae.core.backbone import Backbone
from personae.core.holdings import ClientFaces
from personae.core.layer import Layer, layered
from personae.core.rng import generator
from personae.errors import ConfigError
from personae.layers import Carry, LocalNoise, Noise, SecretSum
from personae.layers.bounding import shortened
from personae.layers.people import People
from personae.parts.secret_noise import chance, new_key
from personae.runtime.host import SEED_WORDS
from personae.runtime.inprocess import SameProcess
from toys import Crowd, Faces, Rehearsal, Relay, TinyPlan, quickly, stage_of

BOUND, SILENT = 0.02, 1e-9
PEOPLE = People(expected=2, beside=3)


class Listening(Relay):
    """Notes what clients received and sent in training."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sent: dict[tuple[int, str], Any] = {}

    def tamper(self, answers: Any) -> Any:
        for answer in answers:
            request = next(each for each in reversed(self.requests) if each.client == answer.client)
            if request.task == "train":
                self.sent[request.round, answer.client.name] = request.down, answer.message
        return answers


@dataclass(frozen=True)
class Without(Crowd):
    """The crowd, of which one client does not have one of its people."""

    client: str = "zoe"
    label: int = 1

    def of(self, client: str) -> ClientFaces:
        faces = super().of(client)
        return ClientFaces(*map(self._less, (faces.train, faces.val, faces.test))) if client == self.client else faces

    def _less(self, faces: Any) -> Faces:
        left = faces.labels != self.label
        labels = faces.labels[left] - (faces.labels[left] > self.label).long()
        names = tuple(name for label, name in enumerate(faces.identities) if label != self.label)
        return Faces(faces.pixels[left], labels, faces.classes - 1, names)


def run(folder: Path, *layers: Layer, holdings: Crowd | None = None, rounds: int = 1, **options: Any) -> Any:
    stage = stage_of(layered(quickly(FedPE()), *layers), rounds=rounds, **options)
    rehearsal = Rehearsal(folder, (stage,), holdings=holdings or Crowd())
    transport = Listening(SameProcess(rehearsal.federation))
    return rehearsal.run(transport), transport.sent


def way(sent: dict[Any, Any], client: str, round_: int = 1) -> torch.Tensor:
    down, up = sent[round_, client]
    return up.model.flat.double() - down.model.entries(up.model.layout).double()


@pytest.mark.parametrize("kind", [Noise, LocalNoise])
def test_a_person_more_or_less_moves_a_client_by_one_bound_and_nobody_else(tmp_path: Path, kind: Any) -> None:
    layer = kind(norm=BOUND, multiplier=SILENT, people=PEOPLE, randomness="seed")
    (_, whole), (_, less) = run(tmp_path / "whole", layer), run(tmp_path / "less", layer, holdings=Without())
    for client in ("ann", "bob", "eve"):
        assert torch.equal(way(whole, client), way(less, client))
    moved = way(whole, "zoe") - way(less, "zoe")
    assert float(moved.norm()) * PEOPLE.expected == pytest.approx(BOUND, rel=1e-3)  # its way is longer than the bound


def test_trained_together_a_person_would_move_more_than_that(tmp_path: Path) -> None:
    """What the layer is for: the update of a client as a whole, shortened to what its people may add together."""
    layer = Noise(norm=5 * BOUND, multiplier=SILENT, randomness="seed")
    (_, whole), (_, less) = run(tmp_path / "whole", layer), run(tmp_path / "less", layer, holdings=Without())
    assert float((way(whole, "zoe") - way(less, "zoe")).norm()) > 2 * BOUND


def test_a_contribution_is_the_algorithms_own_work_on_one_person(tmp_path: Path) -> None:
    """Computed again, person by person, with the algorithm alone."""
    rehearsal, sent = run(tmp_path, Noise(norm=BOUND, multiplier=SILENT, people=PEOPLE, randomness="seed"))
    down, up = sent[1, "eve"]
    algorithm, begin = quickly(FedPE()), down.model.flat
    client, total = prepared(rehearsal, "eve"), torch.zeros_like(begin)
    for label in range(4):
        alone = PEOPLE._alone(client, label, client.train.identities[label])
        assert alone.train.classes == 1 + PEOPLE.beside
        own = (client.train.labels == label).sum()
        assert int((alone.train.labels == 0).sum()) == own
        assert len(alone.train) <= own + PEOPLE.beside * max(2, own)
        found, _ = algorithm.local(down, None, replace(alone, carried=Carried()))
        total += shortened(found.model.flat - begin, BOUND)
    assert torch.allclose(up.model.flat, begin + total / 2, atol=1e-7)


def prepared(rehearsal: Rehearsal, name: str) -> Any:
    """A client as its host makes it for the first round."""
    faces, federation = rehearsal.holdings.of(name), rehearsal.federation
    random = generator(federation.seed, "fedpe", 1, name, SEED_WORDS.get("train", "train"))
    return Client(
        ClientInfo(name, 2), faces.train, faces.val, faces.test, Backbone(TinyPlan().build(), 8), random, 1, 1,
        lambda kind: None, lambda backbone: backbone, federation.public,
    )  # fmt: skip


def test_noise_is_as_strong_as_it_takes_to_hide_a_person(tmp_path: Path) -> None:
    """At a client: z C / n on what it sends. At the server: the same on the sum, so over four clients in the mean."""
    strong = {"norm": 3.0, "multiplier": 2.0, "people": PEOPLE, "randomness": "seed"}
    silent = {**strong, "multiplier": SILENT}
    quiet, plain = run(tmp_path / "quiet", LocalNoise(**silent))
    loud, noised = run(tmp_path / "loud", LocalNoise(**strong))
    for client in ("ann", "zoe"):
        noise = way(noised, client) - way(plain, client)
        assert float(noise.std()) == pytest.approx(3.0, rel=4 / math.sqrt(2 * len(noise)))
    trainable = quiet.federation.backbone().layout.trainable_size
    mean = (loud.final() - quiet.final())[:trainable]
    assert float(mean.std()) == pytest.approx(3.0 / 2, rel=0.1)
    quiet, _ = run(tmp_path / "server-quiet", Noise(**silent))
    loud, _ = run(tmp_path / "server-loud", Noise(**strong))
    assert float((loud.final() - quiet.final())[:trainable].std()) == pytest.approx(3.0 / 4, rel=0.1)


def test_people_are_drawn_for_themselves_with_the_probability_that_is_counted() -> None:
    key = new_key("seed", torch.Generator().manual_seed(3))
    drawn = torch.tensor([[chance(key, f"drawn/{n}/{name}") <= 0.3 for name in "abcd"] for n in range(5000)]).float()
    assert float(drawn.mean()) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 20_000))
    assert float((torch.corrcoef(drawn.T) - torch.eye(4)).abs().max()) < 4 / math.sqrt(5000)


def test_who_is_not_drawn_contributes_nothing_and_draws_differ_by_round(tmp_path: Path) -> None:
    layer = Noise(norm=BOUND, multiplier=SILENT, people=replace(PEOPLE, share=0.5), randomness="seed")
    _, sent = run(tmp_path, layer, rounds=6)
    lengths = {float(way(sent, "ann", number).norm()) * 2 / BOUND for number in range(1, 7)}
    assert any(length == pytest.approx(0, abs=1e-3) for length in lengths)
    assert any(length > 0.5 for length in lengths)


def test_the_key_of_draws_is_secret_and_stays(tmp_path: Path) -> None:
    layer = Noise(norm=BOUND, multiplier=1.0, people=replace(PEOPLE, share=0.5))
    folders = [tmp_path / name for name in ("a", "b")]
    kept = [run(folder, layer, rounds=1) and sorted((folder / "private" / "ann").rglob("*")) for folder in folders]
    contents = [next(path for path in paths if path.is_file()).read_bytes() for paths in kept]
    assert contents[0] != contents[1]  # the same seed, and another key


def test_clients_send_their_sums_under_masks(tmp_path: Path) -> None:
    layer = LocalNoise(norm=BOUND, multiplier=SILENT, people=PEOPLE, randomness="seed")
    plain, _ = run(tmp_path / "plain", layer)
    hidden, _ = run(tmp_path / "hidden", layer, SecretSum())
    assert torch.allclose(plain.final(), hidden.final(), atol=1e-6)


def test_statistics_that_are_not_sent_stay_as_the_stage_began(tmp_path: Path) -> None:
    layer = Noise(norm=BOUND, multiplier=1.0, people=PEOPLE, randomness="seed")
    rehearsal, sent = run(tmp_path, Carry(batch_norm="statistics"), layer, rounds=2)
    assert {type(up.model).__name__ for _, up in sent.values()} == {"ModelWithoutStatistics"}
    begin = rehearsal.federation.backbone().state()
    views, first = (begin.layout.views(flat) for flat in (rehearsal.final(), begin.flat))
    for name in begin.layout.names:
        assert torch.equal(views[name], first[name]) == (name in begin.layout.statistics)


@pytest.mark.parametrize("kind", [Noise, LocalNoise])
class TestRefusals:
    def test_work_on_all_people_together(self, kind: Any) -> None:
        layer = kind(norm=1.0, multiplier=1.0, people=PEOPLE)
        with pytest.raises(ValueError, match="fedfr keeps something of all people of a client together"):
            layered(ALGORITHMS["fedfr"](use_public_faces=False), layer)
        with pytest.raises(ValueError, match="nobody says who is on a face"):
            layered(ALGORITHMS["unsupervised"](), layer)

    def test_no_public_faces(self, kind: Any, tmp_path: Path) -> None:
        layer = kind(norm=1.0, multiplier=1.0, people=PEOPLE)
        assert layered(FedPE(), layer).needs_public
        assert not layered(FedPE(), kind(norm=1.0, multiplier=1.0)).needs_public
        alone = replace(prepared(Rehearsal(tmp_path, (stage_of(FedPE()),)), "ann"), public_faces=None)
        with pytest.raises(ConfigError, match="ann has no public faces to train its people beside"):
            PEOPLE._alone(alone, 0, "person-100-0")


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"expected": 0}, {"expected": 1, "share": 0.0}, {"expected": 1, "beside": 0}):
        with pytest.raises(ValueError, match="must be"):
            People(**wrong)
    with pytest.raises(ValueError, match="cannot follow a quantile"):
        Noise(norm=1.0, multiplier=1.0, quantile=0.5, people=PEOPLE)
