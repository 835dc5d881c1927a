"""The layer `centres`: class embeddings leave as noised centres of clusters, and move with them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import FedFace, FedGC, FedPE
from personae.core.layer import layered
from personae.core.mechanism import Mechanism
from personae.layers import Centres, Noise
from personae.layers.centres import Kept, NoisedCentres, _moved
from personae.parts.secret_noise import gaussian
from personae.privacy.accountant import Accountant, Budget
from personae.privacy.spent import in_words
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from toys import NAMES, Rehearsal, Relay, quickly, stage_of


class Listening(Relay):
    """Notes what clients received and sent."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sent: dict[tuple[int, str], Any] = {}

    def tamper(self, answers: Any) -> Iterator[Any]:
        for answer in answers:
            request = next(each for each in reversed(self.requests) if each.client == answer.client)
            if request.task == "train":
                self.sent[request.round, answer.client.name] = request.down, answer.message
            yield answer


def run(folder: Path, algorithm: Any, rounds: int = 2, **settings: Any) -> tuple[Rehearsal, dict[Any, Any]]:
    layer = Centres(**{"clusters": 2, "multiplier": 0.01, "randomness": "seed", **settings})
    rehearsal = Rehearsal(folder, (stage_of(layered(quickly(algorithm), layer), rounds=rounds),))
    transport = Listening(SameProcess(rehearsal.federation))
    return rehearsal.run(transport), transport.sent


def kept(rehearsal: Rehearsal, client: str) -> Any:
    stage, layout = rehearsal.recipe[0], rehearsal.federation.backbone().layout
    return PrivateStore.of(rehearsal.folder / "private", client).load(stage.name, stage.algorithm.types.private, layout)


@pytest.mark.parametrize("algorithm", [FedGC(strength=0.5), FedFace(strength=0.5)], ids=["fedgc", "fedface"])
def test_centres_leave_and_come_back(algorithm: Any, tmp_path: Path) -> None:
    rehearsal, sent = run(tmp_path, algorithm)
    for (round_, name), (down, up) in sent.items():
        assert type(up.class_embeddings) is NoisedCentres
        assert 1 <= len(up.class_embeddings.vectors) <= 2
        if round_ == 1:
            assert down.class_embeddings is None
        else:
            before = sent[1, name][1].class_embeddings.vectors
            assert down.class_embeddings.vectors.shape == before.shape
            assert not torch.equal(down.class_embeddings.vectors, before)  # the server has pushed them apart
    known = rehearsal.checkpoints.finished(rehearsal.recipe[0].name).class_embeddings
    for name in NAMES:
        assert known[name].vectors.shape == sent[2, name][1].class_embeddings.vectors.shape


def test_a_centre_is_the_noised_sum_of_the_nearest_class_embeddings(tmp_path: Path) -> None:
    """Computed again from what a client keeps: its class embeddings, its key and the anchors before."""
    multiplier = 0.05
    rehearsal, sent = run(tmp_path, FedGC(strength=0.5), rounds=1, multiplier=multiplier)
    for name in NAMES:
        mine = kept(rehearsal, name)
        rows, width = F.normalize(mine.class_embeddings), mine.class_embeddings.shape[1]
        anchors = F.normalize(gaussian(mine.noise_key, "anchors", 2 * width).float().view(2, width))
        noise = multiplier * gaussian(mine.noise_key, "centres/1", 2 * width).float().view(2, width)
        nearest = [max(range(2), key=lambda j: float(row @ anchors[j])) for row in rows]
        expected = []
        for j in range(2):
            total = sum((row for row, at in zip(rows, nearest, strict=True) if at == j), torch.zeros(width)) + noise[j]
            if float(total.norm()) > 1.5 * multiplier * math.sqrt(width):
                expected.append(total / total.norm())
        assert torch.allclose(torch.stack(expected), sent[1, name][1].class_embeddings.vectors, atol=1e-6)


def test_noise_that_drowns_every_cluster_lets_nothing_out(tmp_path: Path) -> None:
    rehearsal, sent = run(tmp_path, FedGC(strength=0.5), multiplier=100.0)
    assert {len(up.class_embeddings.vectors) for _, up in sent.values()} == {0}
    assert rehearsal.checkpoints.finished(rehearsal.recipe[0].name).class_embeddings == {}


def test_class_embeddings_move_with_their_centres() -> None:
    rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mine = Kept(noise_key=torch.zeros(32), anchors=centres, centres=centres, members=torch.tensor([0, 1, -1]))
    moved = _moved(rows, mine, NoisedCentres(torch.tensor([[1.0, 0.5], [0.25, 1.0]])))
    assert torch.equal(moved, torch.tensor([[2.0, 1.0], [0.25, 1.0], [3.0, 4.0]]))
    assert _moved(rows, mine, None) is rows
    assert _moved(rows, mine, NoisedCentres(centres[:1])) is rows  # of another round


def test_one_class_embedding_more_changes_one_sum_by_its_length() -> None:
    layer = Centres(clusters=3, multiplier=1.0)
    assert layer.mechanism == Mechanism(
        multiplier=1.0, unit="class embedding", against="server", covers=("class_embeddings",), secret=True
    )
    stage = stage_of(layered(FedGC(), layer), rounds=4)
    (found,) = Accountant((stage,), {stage.name: 3}, Budget()).spent(stage, 4)
    assert not found.complete  # the model leaves without noise
    assert found.covers == ("NoisedCentres",)
    assert in_words(found).endswith(
        "for each class embedding, from the server, too; none for ModelState of stage fedgc"
    )
    # Four rounds at z = 1 are one at z = 1/2; Balle and Wang's formula at delta 1e-5 is solved by this epsilon.
    near, far = 1 - found.epsilon / 2, -1 - found.epsilon / 2
    normal = torch.special.ndtr(torch.tensor([near, far], dtype=torch.float64))
    assert float(normal[0] - math.exp(found.epsilon) * normal[1]) == pytest.approx(1e-5, rel=0.02)


def test_what_it_cannot_go_around_is_refused() -> None:
    layer = Centres(clusters=2, multiplier=1.0)
    for algorithm in (FedPE(), FedGC(regulariser="none"), FedFace(strength=0.0)):
        with pytest.raises(ValueError, match="no class embeddings"):
            layered(algorithm, layer)
    with pytest.raises(ValueError, match="a token for each person"):
        layered(FedGC(link="key"), layer)
    with pytest.raises(ValueError, match="layer centres adds noise already"):
        layered(FedGC(), layer, Noise(norm=1.0, multiplier=1.0))
    for wrong in ({"clusters": 0, "multiplier": 1.0}, {"clusters": 1, "multiplier": 0.0}):
        with pytest.raises(ValueError, match="it must be"):
            Centres(**wrong)
