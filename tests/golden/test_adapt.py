"""Local adaptation worked by hand: fine-tuning and distillation of two clients, over two rounds of two steps."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from byhand import DECAY, LR, MARGIN, MOMENTUM, SCALE, LinearPlan, Pair, inputs, training
from personae.algorithms import Adapt
from personae.parts.margins import Margin
from personae.parts.public import PublicSampling
from personae.runtime.store import PrivateStore
from toys import Faces, Rehearsal, random_faces, stage_of

PUBLIC = random_faces(9, 3, 3, side=2)
STRENGTH, TEMPERATURE = 0.5, 2.0


def unit(rows: Tensor) -> Tensor:
    return rows / (rows * rows).sum(1, keepdim=True).sqrt()


def means(faces: Faces, theta: Tensor) -> Tensor:
    features = unit(torch.from_numpy(inputs(faces)) @ theta.T)
    return unit(torch.stack([features[faces.labels == person].sum(0) for person in range(faces.classes)]))


def loss_of(x: Tensor, labels: Tensor, theta: Tensor, rows: Tensor, teacher: Tensor, known: Tensor, distil: bool):
    cosines = unit(x @ theta.T) @ unit(rows).T
    margins = MARGIN * torch.eye(len(rows), dtype=torch.float64)[labels]
    shares = torch.exp(SCALE * (cosines - margins))
    total = -torch.log(shares[torch.arange(len(x)), labels] / shares.sum(1)).mean()
    if distil:
        wanted = torch.exp(SCALE * (unit(x @ teacher.T) @ unit(known).T) / TEMPERATURE)
        found = torch.exp(SCALE * cosines / TEMPERATURE)
        p, q = wanted / wanted.sum(1, keepdim=True), found / found.sum(1, keepdim=True)
        total = total + STRENGTH * TEMPERATURE**2 * (p * torch.log(p / q)).sum(1).mean()
    return total


@pytest.mark.parametrize("method", ["fine-tune", "distil"])
@pytest.mark.parametrize("public", [True, False])
def test_two_clients_and_two_rounds_by_hand(tmp_path: Path, method: str, public: bool):
    algorithm = Adapt(
        method=method,
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=training(2),
        use_public_faces=public,
        sampling=PublicSampling(threshold=-1.0),
        strength=STRENGTH,
        temperature=TEMPERATURE,
    )
    stages = (stage_of(algorithm, rounds=2),)
    run = Rehearsal(tmp_path, stages, holdings=Pair(), network=LinearPlan(), benchmarks=(), public=PUBLIC)
    start = run.federation.backbone()
    teacher = start.layout.views(start.flat)["1.weight"].double()
    run.run()

    assert torch.equal(run.final(), start.flat)
    for name in ("ann", "bob"):
        own = Pair().of(name).train
        x, labels, known = torch.from_numpy(inputs(own)), own.labels, means(own, teacher)
        if public:
            x = torch.cat([x, torch.from_numpy(inputs(PUBLIC))])
            labels = torch.cat([labels, own.classes + PUBLIC.labels])
            known = torch.cat([known, means(PUBLIC, teacher)])
        trained, losses = [teacher, known], []
        for _ in range(2):
            speeds = [torch.zeros_like(each) for each in trained]  # momentum starts from rest in every round
            for _ in range(2):
                live = [each.clone().requires_grad_() for each in trained]
                loss = loss_of(x, labels, *live, teacher, known, method == "distil")
                slopes = torch.autograd.grad(loss, live)
                speeds = [MOMENTUM * s + g + DECAY * w for s, g, w in zip(speeds, slopes, trained, strict=True)]
                trained = [w - LR * s for w, s in zip(trained, speeds, strict=True)]
                losses.append(loss.item())
        kept = PrivateStore.of(tmp_path / "private", name).load("adapt", Adapt.types.private, start.layout)
        assert (start.layout.views(kept.model.flat)["1.weight"] - trained[0]).abs().max() < 2e-5
        assert (kept.class_embeddings - trained[1]).abs().max() < 2e-5
        assert (trained[0] - teacher).abs().max() > 1e-2
        figures = [event["clients"][name] for event in run.notebook.books["metrics"] if event["event"] == "personal"]
        assert set(figures[-1]) == {"global/rank1", "personal/rank1"}
