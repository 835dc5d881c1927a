"""What domain adaptation is made of, each formula computed again."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from personae.algorithms import DAN, DANN
from personae.algorithms.domain_adaptation import State
from personae.core.algorithm import Domains, Server
from personae.core.backbone import Backbone
from personae.errors import ConfigError, DataError
from personae.parts.alignment import UNLABELLED, WIDTHS, Mixture, discriminator, domain_loss, mmd, reverse
from personae.parts.clustering import CFinch
from personae.parts.embedding import class_features
from personae.parts.images import Augmentation, normalise
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from personae.parts.pseudo import PseudoLabelled, pseudo_labels
from toys import TinyPlan, random_faces


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(count: int = 7, size: int = 3) -> torch.Tensor:
    return torch.randn(count, size, generator=source(), dtype=torch.float64)


SIDES = torch.tensor([True, False, True, True, False, False, False])


# ------------------------------------------------------------------------------------------------------- discrepancy


def mmd_by_pairs(rows: torch.Tensor, sides: torch.Tensor) -> float:
    count = len(rows)
    squared = [[float(((rows[i] - rows[j]) ** 2).sum()) for j in range(count)] for i in range(count)]
    mean = sum(map(sum, squared)) / (count * (count - 1))
    total = {"ss": [], "tt": [], "st": []}
    for i in range(count):
        for j in range(count):
            kernel = sum(math.exp(-squared[i][j] / (width * mean)) for width in WIDTHS) / len(WIDTHS)
            if sides[i] and sides[j]:
                total["ss"].append(kernel)
            elif not sides[i] and not sides[j]:
                total["tt"].append(kernel)
            elif sides[i]:
                total["st"].append(kernel)
    means = {pair: sum(values) / len(values) for pair, values in total.items()}
    return means["ss"] + means["tt"] - 2 * means["st"]


def test_the_discrepancy_is_that_of_all_pairs():
    assert float(mmd(features(), SIDES)) == pytest.approx(mmd_by_pairs(features(), SIDES), rel=1e-12)


def test_the_discrepancy_has_the_right_gradient_with_the_width_held_fixed():
    rows = features()
    squared = (rows[:, None] - rows[None]).square().sum(2)
    unit = float(squared.sum()) / 42

    def fixed(live: torch.Tensor) -> torch.Tensor:
        distance = (live[:, None] - live[None]).square().sum(2)
        kernel = sum(torch.exp(-distance / (width * unit)) for width in WIDTHS) / len(WIDTHS)
        return kernel[SIDES][:, SIDES].mean() + kernel[~SIDES][:, ~SIDES].mean() - 2 * kernel[SIDES][:, ~SIDES].mean()

    one, other = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    mmd(one, SIDES).backward()
    fixed(other).backward()
    assert torch.allclose(one.grad, other.grad, atol=1e-14)
    assert torch.autograd.gradcheck(fixed, (other,))


def test_alike_domains_have_no_discrepancy_and_one_domain_alone_has_none():
    rows = features(4)
    assert float(mmd(torch.cat([rows, rows]), torch.arange(8) < 4)) == pytest.approx(0, abs=1e-12)
    assert float(mmd(torch.cat([rows, rows + 3]), torch.arange(8) < 4)) > 0.5
    for sides in (torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)):
        assert float(mmd(rows, sides)) == 0
    assert float(mmd(torch.ones(4, 3), torch.arange(4) < 2)) == 0  # all features equal


def test_reversal_turns_the_gradient_around():
    rows = features().requires_grad_()
    assert torch.equal(reverse(rows, 0.3), rows)
    (reverse(rows, 0.3) ** 2).sum().backward()
    assert torch.allclose(rows.grad, -0.3 * 2 * rows.detach())


def test_the_discriminators_loss_is_the_cross_entropy_of_two_layers():
    weights = {name: entry.double() for name, entry in discriminator(3, 5, source()).items()}
    rows = features().requires_grad_()
    hidden = (rows @ weights["inner"].T + weights["inner_bias"]).clamp(min=0)
    chance = 1 / (1 + torch.exp(-(hidden @ weights["outer"].T + weights["outer_bias"])[:, 0]))
    expected = -torch.where(SIDES, chance, 1 - chance).log().mean()
    found = domain_loss(rows, SIDES, tuple(weights.values()))
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    assert torch.autograd.gradcheck(lambda live: domain_loss(live, SIDES, tuple(weights.values())), (rows,))


def test_a_mixture_has_as_many_of_each_domain_and_hides_the_labels_of_the_target():
    here, there = random_faces(1, 2, 2), random_faces(2, 3, 3)
    mixture = Mixture(here, there)
    assert len(mixture) == 18
    assert mixture.classes == 2
    assert mixture.labels.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0] + [UNLABELLED] * 9
    positions = torch.tensor([9, 0, 17, 5, 4])
    expected = [there.pixels[0], here.pixels[0], there.pixels[8], here.pixels[1], here.pixels[0]]
    assert torch.equal(mixture.images(positions), torch.stack(expected))
    only = mixture.images(torch.tensor([1, 2]))
    assert torch.equal(only, here.pixels[1:3])


# ----------------------------------------------------------------------------------------------------------- baselines

TRAINING = LocalSGD(
    lr=0.1,
    momentum=0.0,
    weight_decay=0.0,
    batch_size=64,
    iterations=1,
    augmentation=Augmentation(flip=False, shift=0, colour=0.0),
)
MARGIN = Margin(kind="cosface", scale=8.0, margin=0.2)


def server(round_: int = 1, rounds: int = 4, domains: bool = True) -> Server:
    backbone = Backbone(TinyPlan().build(source(3)), 8)
    sides = Domains(random_faces(1, 3, 4), random_faces(2, 5, 4)) if domains else None
    return Server(backbone.state(), backbone, None, None, source(5), round_, rounds, (), sides)


@pytest.mark.parametrize("kind", [DAN, DANN])
@pytest.mark.parametrize("round_", [1, 3])
def test_one_step_is_that_of_the_formula(kind, round_: int):
    algorithm = kind(margin=MARGIN, training=TRAINING, strength=0.7)
    place = server(round_)
    state = algorithm.start(None, place)
    after = algorithm.merge(state, (), place)

    backbone = Backbone(TinyPlan().build(), 8)
    module = backbone.load(state.model).train()
    here, there = place.domains
    pixels = torch.cat([here.pixels[torch.arange(20) % 12], there.pixels])
    labels, rows = here.labels[torch.arange(20) % 12], state.class_embeddings.clone().requires_grad_()
    helpers = {name: entry.clone().requires_grad_() for name, entry in state.helpers.items()}
    out = module(normalise(pixels))
    unit = F.normalize(out)
    loss = MARGIN.loss(out[:20], rows, labels)
    if kind is DAN:
        squared = (unit[:, None] - unit[None]).square().sum(2)
        width = float(squared.detach().sum()) / (40 * 39)
        kernel = sum(torch.exp(-squared / (w * width)) for w in WIDTHS) / len(WIDTHS)
        loss = loss + 0.7 * (kernel[:20, :20].mean() + kernel[20:, 20:].mean() - 2 * kernel[:20, 20:].mean())
        loss.backward()
    else:
        # The discriminator descends on its loss while the backbone ascends on it, with a strength that grows.
        grown = 0.7 * (2 / (1 + math.exp(-10 * (round_ - 1) / 4)) - 1)
        hidden = F.relu(F.linear(unit, helpers["inner"], helpers["inner_bias"]))
        logits = F.linear(hidden, helpers["outer"], helpers["outer_bias"])[:, 0]
        domain = F.softplus(torch.where(torch.arange(40) < 20, -logits, logits)).mean()
        slopes = torch.autograd.grad(domain, list(helpers.values()), retain_graph=True)
        (loss - grown * domain).backward(inputs=[rows, *module.parameters()])
        for (name, entry), slope in zip(helpers.items(), slopes, strict=True):
            assert torch.allclose(after.helpers[name], entry.detach() - 0.1 * slope, atol=1e-5), name
            assert (after.helpers[name] - entry).abs().max() > 1e-5
        loss = loss + domain
    expected = backbone.weights - 0.1 * backbone.gradient
    moved = after.model.flat[: backbone.layout.trainable_size]
    assert torch.allclose(moved, expected, atol=2e-5)
    assert torch.allclose(after.class_embeddings, (rows - 0.1 * rows.grad).detach(), atol=1e-5)
    assert after.loss == pytest.approx(loss.item(), abs=1e-4)


@pytest.mark.parametrize("kind", [DAN, DANN])
def test_rounds_go_on_with_the_momentum_and_the_schedule_of_the_stage(kind):
    training = replace(TRAINING, momentum=0.9)
    algorithm, place = kind(margin=MARGIN, training=training), server(2)
    state = algorithm.merge(algorithm.start(None, place), (), place)
    size = state.model.layout.trainable_size

    def moved(state: State, training: LocalSGD) -> torch.Tensor:
        after = kind(margin=MARGIN, training=training).merge(state, (), server(3))
        return (after.model.flat - state.model.flat)[:size]

    rest = moved(replace(state, velocity=None), training)
    assert torch.allclose(moved(state, training) - rest, -0.1 * 0.9 * state.velocity[:size], atol=1e-6)
    assert state.velocity[:size].abs().max() > 1e-3
    # in the third of four rounds the rate is half of what it was
    falling = moved(replace(state, velocity=None), replace(training, schedule="linear"))
    assert torch.allclose(falling, rest / 2, atol=1e-6)


@pytest.mark.parametrize("kind", [DAN, DANN])
def test_rows_begin_as_told_and_the_discriminator_is_as_wide_as_told(kind):
    place = server()
    mean, random = (kind(head_init=rows).start(None, place).class_embeddings for rows in ("mean", "random"))
    assert torch.equal(mean, class_features(place.backbone, place.domains.source))
    assert torch.allclose(random.norm(dim=1), torch.ones(3))
    assert not torch.allclose(mean, random, atol=0.1)
    if kind is DANN:
        assert {name: len(entry) for name, entry in DANN(hidden=5).start(None, place).helpers.items()} == {
            "inner": 5,
            "inner_bias": 5,
            "outer": 1,
            "outer_bias": 1,
        }


@pytest.mark.parametrize("kind", [DAN, DANN])
def test_they_say_that_they_need_both_domains_in_one_place(kind):
    assert kind.pools_faces
    assert not kind.federated
    with pytest.raises(ConfigError, match=r'the faces of a source and of targets in one place.*by = "domain"'):
        kind().start(None, server(domains=False))
    with pytest.raises(ValueError, match="not negative"):
        kind(strength=-1)


def test_in_the_first_round_nothing_is_reversed_so_one_round_is_refused():
    with pytest.raises(ConfigError, match="dann: the reversal begins with the second round"):
        DANN().start(None, server(rounds=1))
    DAN().start(None, server(rounds=1))


# ---------------------------------------------------------------------------------------------- pseudo-labels


def test_pseudo_labels_hide_faces_in_small_clusters_and_the_true_labels():
    faces = random_faces(1, 3, 4)
    found = torch.tensor([2, -1, 0, 0, 1, 1, -1, 2, 2, 2, 0, 1])
    view = PseudoLabelled(faces, found)
    assert view.labels.tolist() == [2, 0, 0, 1, 1, 2, 2, 2, 0, 1]
    assert (len(view), view.classes) == (10, 3)
    assert torch.equal(view.images(torch.tensor([1, 0, 9])), faces.pixels[[2, 0, 11]])
    with pytest.raises(DataError, match="none of 12 images is in a cluster that is large enough"):
        PseudoLabelled(faces, torch.full((12,), -1))


def test_pseudo_labels_are_clusters_of_embeddings_and_nothing_else():
    faces = random_faces(1, 3, 4)
    angles = torch.tensor([0, 0.1, 0.2, 2, 2.1, 2.2, 4, 4.1, 4.2, 5.5, 0.05, 2.15])
    vectors = torch.stack([angles.cos(), angles.sin()], 1)

    def embedder(images: torch.Tensor) -> torch.Tensor:
        return vectors[: len(images)]

    labels, shape = pseudo_labels(faces, embedder, CFinch(distance=0.3), 2, source())
    assert (shape.count, shape.largest, shape.outside) == (3, 4, pytest.approx(1 / 12))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, -1, 0, 1]
    empty = random_faces(1, 0, 0)
    with pytest.raises(DataError, match="no image to cluster"):
        pseudo_labels(empty, embedder, CFinch(), 2, source())
