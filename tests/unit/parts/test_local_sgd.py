"""The training loop against torch's own optimiser on an ordinary module."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personae.core.backbone import Backbone
from personae.errors import DataError, Diverged
from personae.parts.batches import Batch, even_batches, full_batches
from personae.parts.images import Augmentation, normalise
from personae.parts.local_sgd import LocalSGD
from toys import Faces, TinyPlan, random_faces

PLAIN = Augmentation(flip=False, shift=0, colour=0.0)


def batches_of(count: int, size: int, steps: int, generator: torch.Generator) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    while len(found) < steps:
        found += torch.randperm(count, generator=generator).tensor_split(math.ceil(count / size))
    return found[:steps]


def by_torch(sgd: LocalSGD, module: nn.Module, rows: torch.Tensor, faces: Faces, generator: torch.Generator) -> float:
    """The same training with torch.optim.SGD and clip_grad_norm_; gives the mean loss."""
    rows.requires_grad_(True)
    groups = [{"params": list(module.parameters())}, {"params": [rows]}]
    optimiser = torch.optim.SGD(groups, lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    steps = sgd.steps(len(faces))
    losses = []
    module.train()
    for step, positions in enumerate(batches_of(len(faces), sgd.batch_size, steps, generator)):
        progress = step / steps
        rate = {
            "constant": 1.0,
            "linear": 1 - (progress - sgd.warmup) / (1 - sgd.warmup),
            "cosine": 0.5 + 0.5 * math.cos(math.pi * (progress - sgd.warmup) / (1 - sgd.warmup)),
        }[sgd.schedule]
        if progress < sgd.warmup:
            rate = progress / sgd.warmup
        optimiser.param_groups[0]["lr"] = sgd.lr * rate
        optimiser.param_groups[1]["lr"] = sgd.lr * rate * sgd.head_rate
        loss = F.cross_entropy(module(normalise(faces.images(positions))) @ rows.T, faces.labels[positions])
        optimiser.zero_grad()
        loss.backward()
        if sgd.clip_norm is not None:
            nn.utils.clip_grad_norm_([*module.parameters(), rows], sgd.clip_norm)
        optimiser.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0, "weight_decay": 0.0},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"momentum": 0.9, "schedule": "cosine", "warmup": 0.3},
        {"momentum": 0.5, "schedule": "linear", "clip_norm": 0.5},
        {"momentum": 0.5, "warmup": 0.5, "clip_norm": 1e6},
        {"momentum": 0.9, "schedule": "cosine", "head_rate": 0.1},
        {"momentum": 0.9, "weight_decay": 0.01, "head_rate": 10.0},
        {"momentum": 0.0, "weight_decay": 0.1, "clip_norm": 1e-3, "epochs": 2.5, "iterations": None},
    ],
)
def test_it_trains_like_torchs_own_optimiser(backbone: Backbone, options):
    faces = random_faces(2, 3, 5)
    sgd = LocalSGD(**{"lr": 0.02, "batch_size": 4, "iterations": 7, "augmentation": PLAIN, **options})
    module = TinyPlan().build()
    module.load_state_dict(copy.deepcopy(backbone.module.state_dict()))
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    theirs = rows.clone()
    before = backbone.flat.clone()

    def loss(batch: Batch) -> torch.Tensor:
        return F.cross_entropy(backbone.module(batch.images) @ rows.T, batch.labels)

    fit = sgd.fit(backbone, [rows], faces, loss, torch.Generator().manual_seed(9))
    expected = by_torch(sgd, module, theirs, faces, torch.Generator().manual_seed(9))
    state = {name: entry for name, entry in module.state_dict().items() if entry.is_floating_point()}
    # float32 sums in another order (channels_last, one norm over flat vectors): a few units in the last place a step,
    # relative to weights of order one. A wrong formula is off by lr x gradient, 1e-3 and more.
    assert (backbone.flat - before).abs().max() > 1e-3 or options.get("clip_norm") == 1e-3
    assert torch.allclose(backbone.flat, backbone.layout.flatten(state).detach(), rtol=2e-5, atol=2e-6)
    assert torch.allclose(rows, theirs.detach(), rtol=2e-5, atol=2e-6)
    assert fit.loss == pytest.approx(expected, rel=1e-5)
    assert fit.steps == sgd.steps(15)
    assert not rows.requires_grad
    assert not backbone.module.training


def test_one_training_may_be_cut_in_equal_parts_without_a_trace(backbone: Backbone):
    """Momentum and schedule carry over: three parts of two steps are six steps in one."""
    faces, start = random_faces(2, 3, 4), backbone.state()
    options = {"lr": 0.02, "batch_size": 12, "schedule": "cosine", "warmup": 0.2, "augmentation": PLAIN}
    beginning = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))

    def train(parts: int) -> tuple[torch.Tensor, torch.Tensor]:
        module, rows, velocity = backbone.load(start), beginning.clone(), None
        generator = torch.Generator().manual_seed(9)
        sgd = LocalSGD(iterations=6 // parts, **options)
        for index in range(parts):
            fit = sgd.fit(
                backbone,
                [rows],
                faces,
                lambda batch: F.cross_entropy(module(batch.images) @ rows.T, batch.labels),
                generator,
                velocity=velocity,
                part=(index, parts),
            )
            velocity = fit.velocity
        return backbone.flat.clone(), rows

    whole, cut = train(1), train(3)
    assert torch.allclose(whole[0], cut[0], rtol=0, atol=1e-7)  # rates differ in the last bit of (i + s/n)/m
    assert torch.allclose(whole[1], cut[1], rtol=0, atol=1e-6)


def test_the_momentum_given_is_not_written_to(backbone: Backbone, faces: Faces):
    rows = torch.randn(3, 8)
    size = backbone.layout.trainable_size + rows.numel()
    velocity = torch.full((size,), 0.01)
    sgd = LocalSGD(iterations=2, batch_size=4)
    fit = sgd.fit(
        backbone,
        [rows],
        faces,
        lambda batch: F.cross_entropy(backbone.module(batch.images) @ rows.T, batch.labels),
        torch.Generator().manual_seed(0),
        velocity=velocity,
    )
    assert torch.equal(velocity, torch.full((size,), 0.01))
    assert fit.velocity.shape == velocity.shape
    assert not torch.equal(fit.velocity, velocity)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (4, 4), (5, 4), (33, 32), (100, 7)])
def test_an_epoch_shows_every_image_once_in_batches_of_almost_equal_size(count, size):
    parts = math.ceil(count / size)
    stream = even_batches(count, size, torch.Generator().manual_seed(0))
    for _ in range(2):
        epoch = [next(stream) for _ in range(parts)]
        assert sorted(torch.cat(epoch).tolist()) == list(range(count))
        sizes = {len(batch) for batch in epoch}
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("count", "size"), [(1, 4), (3, 4), (4, 4), (5, 4), (33, 32), (100, 7)])
def test_full_batches_have_one_size_and_show_every_image_equally_often(count, size):
    stream = full_batches(count, size, torch.Generator().manual_seed(0))
    batches = [next(stream) for _ in range(3 * count)]
    assert {len(batch) for batch in batches} == {size}
    shown = torch.cat(batches)
    assert torch.bincount(shown).tolist() == [3 * size] * count
    for epoch in shown.split(count):
        assert sorted(epoch.tolist()) == list(range(count))
    assert not torch.equal(shown[:count], shown[count : 2 * count]) or count < 4


def test_full_batches_in_training(backbone: Backbone, faces: Faces):
    options = LocalSGD(batches="full", batch_size=5, epochs=2, augmentation=PLAIN)
    assert options.steps(len(faces)) == max(1, round(2 * len(faces) / 5))
    assert options.steps(1) == 1
    sizes = []

    def loss(batch: Batch) -> torch.Tensor:
        sizes.append(len(batch.labels))
        return backbone.module(batch.images).square().mean()

    fit = options.fit(backbone, [], faces, loss, torch.Generator().manual_seed(0))
    assert sizes == [5] * fit.steps == [5] * options.steps(len(faces))


def test_a_fit_draws_no_more_random_numbers_than_its_steps_need(backbone: Backbone, faces: Faces):
    generator, same = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    LocalSGD(epochs=2, batch_size=4, augmentation=PLAIN).fit(
        backbone, [], faces, lambda batch: backbone.module(batch.images).square().mean(), generator
    )
    for _ in range(2):
        torch.randperm(len(faces), generator=same)
    assert torch.equal(generator.get_state(), same.get_state())


@pytest.mark.parametrize(
    ("options", "samples", "steps"),
    [({}, 65, 3), ({"epochs": 2}, 64, 4), ({"epochs": 0.1}, 32, 1), ({"iterations": 5}, 10**6, 5), ({}, 1, 1)],
)
def test_the_budget(options, samples, steps):
    assert LocalSGD(batch_size=32, **options).steps(samples) == steps


def test_a_loss_that_is_not_finite_is_told_at_once_and_with_advice(backbone: Backbone, faces: Faces):
    sgd = LocalSGD(iterations=100, batch_size=4)
    with pytest.raises(Diverged, match=r"the loss is nan after 16 steps; lower lr \(now 0.05\) or set clip_norm"):
        sgd.fit(
            backbone,
            [],
            faces,
            lambda batch: backbone.module(batch.images).mean() * math.nan,
            torch.Generator().manual_seed(0),
        )
    assert not backbone.module.training


def test_too_few_images_are_told(backbone: Backbone, faces: Faces):
    def fit(count: int) -> None:
        few = Faces(faces.pixels[:count], faces.labels[:count], faces.classes)
        LocalSGD(iterations=1).fit(
            backbone, [], few, lambda batch: backbone.module(batch.images).mean(), torch.Generator().manual_seed(0)
        )

    with pytest.raises(DataError, match="no image to train on"):
        fit(0)
    with pytest.raises(DataError, match="one would stand alone"):
        fit(1)
    fit(2)


@pytest.mark.parametrize(
    ("count", "size", "alone"), [(3, 2, True), (7, 2, True), (4, 1, True), (4, 3, False), (7, 3, False)]
)
def test_a_batch_of_one_image_is_told_before_batch_norm_stumbles_over_it(backbone: Backbone, count, size, alone):
    def fit() -> int:
        sgd, source = LocalSGD(epochs=1, batch_size=size), torch.Generator().manual_seed(0)
        faces = random_faces(0, 1, count)
        return sgd.fit(backbone, [], faces, lambda batch: backbone.module(batch.images).square().mean(), source).steps

    if alone:
        with pytest.raises(DataError, match=f"of {count} images in batches of {size}, one would stand alone"):
            fit()
    else:
        assert fit() == math.ceil(count / size)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"lr": math.nan},
        {"batch_size": 0},
        {"epochs": 0},
        {"iterations": 0},
        {"clip_norm": 0.0},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"warmup": 1.0},
        {"epochs": 1, "iterations": 1},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        LocalSGD(**options)


def test_reduced_precision_stays_close_and_keeps_float32_weights(backbone: Backbone, faces: Faces):
    start, ends = backbone.state(), {}
    for precision in ("float32", "bfloat16"):
        module, rows = backbone.load(start), torch.eye(3, 8)
        LocalSGD(iterations=3, batch_size=5, lr=0.01, precision=precision).fit(
            backbone,
            [rows],
            faces,
            lambda batch, module=module, rows=rows: F.cross_entropy(
                module(batch.images).float() @ rows.T, batch.labels
            ),
            torch.Generator().manual_seed(0),
        )
        ends[precision] = backbone.flat[: backbone.layout.trainable_size].clone()
    moved = (ends["float32"] - start.flat[: backbone.layout.trainable_size]).norm()
    assert ends["bfloat16"].dtype == torch.float32
    assert 0 < (ends["bfloat16"] - ends["float32"]).norm() < 0.1 * moved


def test_frozen_statistics_are_used_and_left_as_they_are(backbone: Backbone):
    """The loss sees the network as in evaluation, one image is enough, and all that is trained moves."""
    faces = random_faces(2, 1, 1)
    start = backbone.state()
    views = backbone.layout.views(backbone.flat)
    views["1.running_mean"].fill_(0.3)
    views["1.running_var"].fill_(2.0)
    before = {name: view.clone() for name, view in views.items()}
    expected = backbone.module.eval()(normalise(faces.pixels)).square().mean()
    sgd = LocalSGD(iterations=1, batch_size=4, augmentation=PLAIN)

    def loss(batch: Batch) -> torch.Tensor:
        return backbone.module(batch.images).square().mean()

    fit = sgd.fit(backbone, [], faces, loss, torch.Generator(), frozen_statistics=True)
    assert fit.loss == pytest.approx(float(expected.detach()), rel=1e-6)
    moved = {name for name, view in views.items() if not torch.equal(view, before[name])}
    assert moved == set(backbone.layout.names[: backbone.layout.trainable])
    backbone.load(start)
    with pytest.raises(DataError, match="BatchNorm"):
        sgd.fit(backbone, [], faces, loss, torch.Generator())
