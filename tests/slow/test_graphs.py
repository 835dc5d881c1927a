"""Captured training on a GPU against the same training step by step."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.models import Network
from personae.parts import graphs
from personae.parts.batches import Batch
from personae.parts.graphs import Program
from personae.parts.local_sgd import LocalSGD
from personae.parts.local_step import LocalStep
from personae.parts.margins import Margin
from personae.parts.terms import EmbeddingRegularisation, Proximal, Term
from toys import random_faces

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

NETWORK = Network(name="small", embedding=16, height=32, width=32)
TRAINING = LocalSGD(lr=0.02, batch_size=8, epochs=3)
PLAIN = Acceleration().without(["graphs", "resident"])


@pytest.fixture(autouse=True)
def _exact_sums(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    graphs.tell_once.cache_clear()


def backbone(acceleration: Acceleration) -> Backbone:
    return Backbone(NETWORK.build(torch.Generator().manual_seed(0)), NETWORK.embedding, "cuda", acceleration)


def clients(
    trained: Backbone, counts=(3, 5, 8, 9, 5), training: LocalSGD = TRAINING, terms: tuple[Term, ...] = (), **options
) -> list[Tensor]:
    """One backbone, client after client from the same start; what each ends with."""
    start, ends = trained.state(), []
    for number, classes in enumerate(counts):
        faces = random_faces(number, classes, 7, 32)
        trained.load(start)
        rows = torch.randn(classes, 16, generator=torch.Generator().manual_seed(number)).cuda()
        step = LocalStep(margin=Margin(), terms=terms)
        loss = step.objective(trained, start, step.classification(rows))
        fit = training.fit(trained, [rows], faces, loss, torch.Generator().manual_seed(number), **options)
        slope = rows.new_empty(0) if fit.mean_gradient is None else fit.mean_gradient
        ends.append(torch.cat([trained.flat, rows.flatten(), fit.velocity, slope, torch.tensor([fit.loss]).cuda()]))
    return ends


def programs(trained: Backbone) -> list[Program]:
    return [value for value in trained.prepared.values() if isinstance(value, Program)]


def far(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).norm() / a.norm()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"terms": (Proximal(weight=0.1),)},
        {"terms": (EmbeddingRegularisation(weight=1.0),)},
        {"frozen_statistics": True},
    ],
    ids=["plain", "proximal", "embedding regularisation", "frozen statistics"],
)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 2**-8)])
def test_captured_training_is_that_of_single_steps(options, precision, tolerance):
    """In bfloat16, a weight that differs in its last bit may be rounded to the neighbour: by one part in 256."""
    training = replace(TRAINING, precision=precision, clip_norm=1.0, lr=0.002)
    captured = backbone(Acceleration())
    found = clients(captured, training=training, **options)
    assert any(graph is not None for program in programs(captured) for graph in program.graphs.values())
    assert far(clients(backbone(PLAIN), training=training, **options), found) < tolerance


def test_momentum_goes_in_and_comes_out():
    training = replace(TRAINING, clip_norm=1.0, lr=0.002)
    ends = []
    for acceleration in (PLAIN, Acceleration()):
        trained = backbone(acceleration)
        size = trained.weights.numel() + 5 * 16
        velocity = torch.randn(size, generator=torch.Generator().manual_seed(9)) / 100
        ends.append(clients(trained, counts=(5, 5, 5), training=training, velocity=velocity))
    assert far(*ends) < 1e-4


def test_a_correction_goes_in_and_the_mean_gradient_comes_out():
    training = replace(TRAINING, clip_norm=1.0, lr=0.002)
    ends, sizes = [], []
    for acceleration in (PLAIN, Acceleration()):
        trained = backbone(acceleration)
        correction = torch.randn(trained.weights.numel(), generator=torch.Generator().manual_seed(9)) / 100
        ends.append(clients(trained, counts=(5, 5, 5), training=training, correction=correction))
        sizes.append(len(ends[-1][0]) - len(clients(trained, counts=(5,), training=training)[0]))
    assert sizes == [len(correction), len(correction)]
    assert far(*ends) < 1e-4


def test_clients_with_different_numbers_of_identities_share_programs():
    padded, exact = backbone(Acceleration()), backbone(Acceleration().without(["padding"]))
    clients(padded)
    clients(exact)
    assert sorted(len(program.places[0]) for program in programs(padded)) == [8, 16]
    assert sorted(len(program.places[0]) for program in programs(exact)) == [3, 5, 8, 9]


def test_in_bfloat16_too_clients_share_graphs(caplog: pytest.LogCaptureFixture):
    network = Network(name="mobilefacenet", embedding=16, height=32, width=32)
    module = network.build(torch.Generator().manual_seed(0))
    padded = Backbone(module, network.embedding, "cuda", Acceleration())
    clients(padded, training=replace(TRAINING, precision="bfloat16"))
    assert caplog.messages == []
    assert sorted(len(program.places[0]) for program in programs(padded)) == [8, 16]


def counting_rows(trained: Backbone, rows: Tensor) -> Callable[[Batch], Tensor]:
    """A loss that depends on how many rows there are: padding would change it."""
    return lambda batch: (trained.module(batch.images) @ rows.T).mean() + rows.square().sum() / len(rows)


def test_a_loss_that_counts_rows_is_not_padded(caplog: pytest.LogCaptureFixture):
    ends = []
    for acceleration in (PLAIN, Acceleration()):
        trained = backbone(acceleration)
        rows = torch.ones(3, 16, device="cuda")
        faces = random_faces(0, 3, 8, 32)
        training = replace(TRAINING, lr=0.002, clip_norm=1.0)
        fit = training.fit(trained, [rows], faces, counting_rows(trained, rows), torch.Generator().manual_seed(0))
        ends.append([torch.cat([trained.flat, rows.flatten(), fit.velocity])])
    assert far(*ends) < 1e-4
    assert "rows of zeros" in caplog.text


def test_what_cannot_be_captured_is_trained_step_by_step_and_says_so(caplog: pytest.LogCaptureFixture):
    ends = []
    for acceleration in (PLAIN, Acceleration()):
        trained, seen = backbone(acceleration), []

        def loss(batch: Batch, trained=trained, seen=seen) -> Tensor:
            seen.append(len(batch.labels))
            return trained.module(batch.images).square().mean()

        training = replace(TRAINING, lr=0.002, clip_norm=1.0)
        training.fit(trained, [], random_faces(0, 3, 8, 32), loss, torch.Generator().manual_seed(0))
        assert len(seen) == 9
        ends.append([trained.flat.clone()])
    assert far(*ends) < 1e-4
    assert "its loss uses seen, a list" in caplog.text


def test_a_loss_that_waits_for_the_device_falls_back(caplog: pytest.LogCaptureFixture):
    ends = []
    for acceleration in (PLAIN, Acceleration()):
        trained = backbone(acceleration)

        def loss(batch: Batch, trained=trained) -> Tensor:
            value = trained.module(batch.images).square().mean()
            return value if float(value.detach()) >= 0 else -value

        training = replace(TRAINING, lr=0.002, clip_norm=1.0)
        training.fit(trained, [], random_faces(0, 3, 8, 32), loss, torch.Generator().manual_seed(0))
        ends.append([trained.flat.clone()])
    assert far(*ends) < 1e-4
    assert "not captured" in caplog.text


def test_a_second_network_in_the_loss_is_read_anew_by_every_client():
    """As a loss that compares with the previous model does."""
    ends = []
    for acceleration in (PLAIN, Acceleration()):
        trained, other = backbone(acceleration), backbone(acceleration)
        start, found = trained.state(), []
        for number in range(4):
            module = trained.load(start)
            other.load(start)
            other.flat.mul_(1 + 0.1 * number)

            def loss(batch: Batch, module=module, previous=other.module) -> Tensor:
                with torch.no_grad():
                    wanted = previous(batch.images)
                return (module(batch.images) - wanted).square().mean()

            training = replace(TRAINING, lr=0.002, clip_norm=1.0)
            training.fit(trained, [], random_faces(0, 3, 8, 32), loss, torch.Generator().manual_seed(0))
            found.append(trained.flat.clone())
        ends.append(found)
    assert far(*ends) < 1e-4
    assert not torch.equal(ends[1][0], ends[1][3])
