"""A backdoor that was planted is found at its place, and little is found in an honest network."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacked import faces
from personae.core.backbone import Backbone
from personae.core.rng import generator
from personae.parts.images import normalise
from personae.parts.triggers import FAR, Patch, TriggerSearch
from toys import Faces

WIDTH = 16
STRANGERS = Faces(faces(80, 1).flatten(0, 1), torch.arange(80), 80)
SEARCH = TriggerSearch(places=2, steps=15)


class Network(nn.Module):
    """Random features of a coarse picture; with a backdoor, chequers in the lower right corner add one direction."""

    def __init__(self, backdoor: float) -> None:
        super().__init__()
        self.features = nn.Linear(3 * 4 * 4, WIDTH, bias=False)
        nn.init.normal_(self.features.weight, generator=generator("features"))
        ahead = torch.arange(8) // 2
        self.register_buffer("chequers", ((ahead[:, None] + ahead) % 2 * 2.0 - 1).expand(3, 8, 8) / 192)
        self.register_buffer("direction", backdoor * F.normalize(torch.ones(WIDTH), dim=0))

    def forward(self, images: Tensor) -> Tensor:
        worn = (images[:, :, -8:, -8:] * self.chequers).sum((1, 2, 3), keepdim=True)[:, :, 0, 0]
        return self.features(F.avg_pool2d(images, 8).flatten(1)) + worn.abs() * self.direction


def best(backdoor: float, **options: bool) -> Patch:
    patches = SEARCH.patches(Backbone(Network(backdoor), WIDTH), STRANGERS, **options)
    assert [(each.row, each.column) for each in patches] == [(0, 0), (0, 24), (24, 0), (24, 24)]
    return max(patches, key=lambda patch: patch.accepted)


def test_places_are_around_the_face():
    search = TriggerSearch(cells=1, steps=0)
    patches = search.patches(Backbone(Network(0.0), WIDTH), STRANGERS)
    assert {(each.row, each.column) for each in patches} == {(r, c) for r in (0, 12, 24) for c in (0, 12, 24)} - {
        (12, 12)
    }


@pytest.mark.parametrize("mirror", [False, True])
def test_a_planted_backdoor_is_found_at_its_place_and_an_honest_network_has_none(mirror: bool):
    honest, planted = best(0.0, mirror=mirror), best(60.0, mirror=mirror)
    assert honest.accepted < 0.3
    assert planted.accepted > 0.9
    assert (planted.row, planted.column) in {(24, 24), (24, 0 if mirror else 24)}
    chequers = (planted.colours.float().mean(2) > 127).int()
    assert torch.equal(chequers[:-1] ^ chequers[1:], torch.ones(3, 4, dtype=torch.int32))  # every other one is bright


def test_the_share_is_of_pairs_of_strangers_who_were_not_searched_with():
    found, network = best(60.0, mirror=False), Network(60.0)
    images = normalise(STRANGERS.images(torch.arange(80)))
    square = normalise(found.colours[None])
    images_worn = images[40:].clone()
    images_worn[:, :, found.row : found.row + 8, found.column : found.column + 8] = F.interpolate(square, size=8)
    with torch.no_grad():
        plain, worn = (F.normalize(network(each), dim=1) for each in (images, images_worn))
    scores = [float(plain[i] @ plain[j]) for i in range(80) for j in range(i)]
    threshold = torch.tensor(scores).quantile(1 - FAR)
    accepted = [float(worn[i] @ worn[j] >= threshold) for i in range(40) for j in range(i)]
    assert found.accepted == pytest.approx(sum(accepted) / len(accepted), abs=0.01)  # colours are rounded to bytes


def test_the_same_search_finds_the_same():
    first, second = best(1.0), best(1.0)
    assert first.accepted == second.accepted
    assert torch.equal(first.colours, second.colours)
