"""FedFR worked by hand: two clients, public faces of three people, every term of the loss written out in float64."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from byhand import DECAY, LR, MARGIN, MOMENTUM, SCALE, LinearPlan, Pair, inputs, training
from personae.algorithms import FedFR
from personae.algorithms.fedfr import Private
from personae.core.algorithm import ClientInfo, Session
from personae.core.embedder import embed
from personae.parts.margins import Margin
from personae.parts.objectives import OneVsAll
from personae.parts.public import PublicSampling
from personae.runtime.host import ClientHost
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Request
from toys import Faces, Rehearsal, random_faces, stage_of

PUBLIC = random_faces(9, 3, 3, side=2)
THRESHOLD = 0.55
TAU, BRANCH_SCALE, BRANCH_MARGIN, LAMBDA, POWER = 0.5, 6.0, 0.2, 0.7, 3
ALPHA = {"binary": (1.0, 5.0, 10.0), "cosface": (0.6, 3.0, 7.0)}  # the paper's weights, and others


def unit(rows: Tensor) -> Tensor:
    return rows / (rows * rows).sum(1, keepdim=True).sqrt()


def seen(faces: Faces) -> Tensor:
    return torch.from_numpy(inputs(faces))


def means(faces: Faces, theta: Tensor) -> Tensor:
    """Each person's mean direction."""
    features = unit(seen(faces) @ theta.T)
    return unit(torch.stack([features[faces.labels == person].sum(0) for person in range(faces.classes)]))


@dataclass
class Kept:
    """What a client has between rounds."""

    rows: Tensor  # W
    matrix: Tensor  # Pi
    shift: Tensor
    omega: Tensor
    bias: Tensor
    previous: Tensor | None = None


def total_loss(x, labels, theta, phi, kept: Kept, theta_global, branch: str) -> Tensor:
    """The sum of Eq. 7, face by face."""
    total, people = torch.zeros((), dtype=torch.float64), len(kept.rows)
    classify, contrast, customise = ALPHA[branch]
    own_faces = int((labels < people).sum())
    for image, label in zip(x, labels.tolist(), strict=True):
        f = theta @ image
        rows = torch.cat([kept.rows, phi])
        cosines = (unit(rows) @ unit(f[None]).T).flatten()
        logits = [SCALE * (c - (MARGIN if j == label else 0)) for j, c in enumerate(cosines)]
        total += -classify * torch.log(torch.exp(logits[label]) / sum(torch.exp(z) for z in logits)) / len(x)
        if kept.previous is not None:
            near, far = (
                torch.exp((unit(f[None]) * unit((other @ image)[None])).sum() / TAU)
                for other in (theta_global, kept.previous)
            )
            total += -contrast * torch.log(near / (near + far)) / len(x)
        transformed = kept.matrix @ f + kept.shift
        cosines = (unit(kept.omega) @ unit(transformed[None]).T).flatten()
        if branch == "binary":
            for j, c in enumerate(cosines):
                g = 2 * ((c + 1) / 2) ** POWER - 1
                if j == label:
                    term = LAMBDA * torch.log(1 + torch.exp(-BRANCH_SCALE * (g - BRANCH_MARGIN) - kept.bias[j]))
                else:
                    term = (1 - LAMBDA) * torch.log(1 + torch.exp(BRANCH_SCALE * (g + BRANCH_MARGIN) + kept.bias[j]))
                total += customise * term / BRANCH_SCALE / len(x)
        elif label < people:  # a public face is nobody among the client's own people
            logits = [BRANCH_SCALE * (c - (BRANCH_MARGIN if j == label else 0)) for j, c in enumerate(cosines)]
            term = -torch.log(torch.exp(logits[label]) / sum(torch.exp(z) for z in logits))
            total += customise * term / BRANCH_SCALE / own_faces
    return total


def client_round(faces: Faces, theta_global: Tensor, phi_global: Tensor, kept: Kept | None, branch: str):
    """theta_i, Phi_i, what the client keeps, how many public faces it chose, and the mean loss of two steps."""
    similar = unit(seen(PUBLIC) @ theta_global.T) @ unit(seen(faces) @ theta_global.T).T
    hard = (similar > THRESHOLD).any(1)
    x = torch.cat([seen(faces), seen(PUBLIC)[hard]])
    labels = torch.cat([faces.labels, faces.classes + PUBLIC.labels[hard]])
    if kept is None:
        rows = means(faces, theta_global)
        people, zeros = faces.classes, torch.zeros(3, dtype=torch.float64)
        kept = Kept(rows, torch.eye(3).double(), zeros, rows.clone(), torch.zeros(people).double())
    names = ("rows", "matrix", "shift", "omega", "bias")
    trained = [theta_global, phi_global, *(getattr(kept, name) for name in names)]
    speeds, losses = [torch.zeros_like(each) for each in trained], []
    for _ in range(2):
        live = [each.clone().requires_grad_() for each in trained]
        now = Kept(*live[2:], previous=kept.previous)
        loss = total_loss(x, labels, live[0], live[1], now, theta_global, branch)
        slopes = torch.autograd.grad(loss, live, allow_unused=True)
        slopes = [torch.zeros_like(each) if slope is None else slope for each, slope in zip(live, slopes, strict=True)]
        speeds = [MOMENTUM * s + g + DECAY * w for s, g, w in zip(speeds, slopes, trained, strict=True)]
        trained = [w - LR * s for w, s in zip(trained, speeds, strict=True)]
        losses.append(loss.item())
    theta, phi = trained[:2]
    return theta, phi, Kept(*trained[2:], previous=theta), int(hard.sum()), float(np.mean(losses))


@pytest.mark.parametrize("branch", ["binary", "cosface"])
def test_two_clients_and_three_rounds_by_hand(tmp_path: Path, branch: str):
    weights = dict(zip(("classify", "contrast", "customise"), ALPHA[branch], strict=True))
    algorithm = FedFR(
        margin=Margin(kind="cosface", scale=SCALE, margin=MARGIN),
        training=training(2),
        sampling=PublicSampling(threshold=THRESHOLD),
        one_vs_all=OneVsAll(scale=BRANCH_SCALE, margin=BRANCH_MARGIN, balance=LAMBDA, exponent=POWER),
        temperature=TAU,
        branch=branch,
        **({} if branch == "binary" else weights),  # the first are the defaults
    )
    run = Rehearsal(
        tmp_path,
        (stage_of(algorithm, rounds=3),),
        holdings=Pair(),
        network=LinearPlan(),
        benchmarks=(),
        public=PUBLIC,
    )
    start = run.federation.backbone()
    theta = start.layout.views(start.flat)["1.weight"].double()
    phi = first_phi = means(PUBLIC, theta)
    run.run()

    kept: dict[str, Kept | None] = {"ann": None, "bob": None}
    shares, losses = [], []
    for _ in range(3):
        found = {}
        for name in kept:
            found[name] = client_round(Pair().of(name).train, theta, phi, kept[name], branch)
            kept[name] = found[name][2]
        theta = 4 / 13 * found["ann"][0] + 9 / 13 * found["bob"][0]
        phi = 4 / 13 * found["ann"][1] + 9 / 13 * found["bob"][1]  # Eq. 4
        shares.append((found["ann"][3] + found["bob"][3]) / 18)
        losses.append((found["ann"][4] + found["bob"][4]) / 2)

    # float32 against float64 over six steps.
    assert (start.layout.views(run.final())["1.weight"] - theta).abs().max() < 2e-5
    state = run.checkpoints.finished("fedfr")
    assert (state.public_embeddings.vectors - phi).abs().max() < 2e-5
    assert (phi - first_phi).abs().max() > 1e-3  # and Eq. 4 is no trifle
    rounds = [event["scalars"] for event in run.notebook.rounds()]
    assert [each["public_share"] for each in rounds] == pytest.approx(shares)
    assert 0 < shares[0] < 1
    assert [each["loss"] for each in rounds] == pytest.approx(losses, rel=1e-5)
    for name, by_hand in kept.items():
        private = PrivateStore.of(tmp_path / "private", name).load("fedfr", Private, start.layout)
        assert (private.class_embeddings - by_hand.rows).abs().max() < 2e-5
        assert (private.branch["transform"] - by_hand.matrix).abs().max() < 2e-5
        assert (private.branch["shift"] - by_hand.shift).abs().max() < 2e-5
        assert (private.branch["classifiers"] - by_hand.omega).abs().max() < 2e-5
        assert (private.branch["bias"] - by_hand.bias[:, None]).abs().max() < 2e-5
        assert (start.layout.views(private.model.flat)["1.weight"] - by_hand.previous).abs().max() < 2e-5
        bare = replace(algorithm, transformed=False)
        for model, expected in ((algorithm, by_hand), (bare, replace(by_hand, matrix=torch.eye(3), shift=0))):
            assert personal_vectors(run, model, name, private) == pytest.approx(
                vectors_by_hand(name, expected), abs=2e-5
            )


def personal_vectors(run: Rehearsal, algorithm: FedFR, name: str, private: Private) -> np.ndarray:
    host = ClientHost(run.federation)
    down = algorithm.send(run.checkpoints.finished("fedfr"), ClientInfo(name, 0))
    client = host._client(Request("evaluate", "fedfr", 3, ClientInfo(name, 0), down), run.recipe[0], Session())
    return embed(algorithm.personal(down, private, client), Pair().of(name).test).numpy()


def vectors_by_hand(name: str, kept: Kept) -> np.ndarray:
    """An image and its mirror image, each through the backbone and the transform; their sum, of length one."""
    faces = Pair().of(name).test
    mirrored = Faces(faces.pixels.flip(2), faces.labels, faces.classes)
    both = [seen(each) @ kept.previous.T @ kept.matrix.T.double() + kept.shift for each in (faces, mirrored)]
    return unit(both[0] + both[1]).numpy()
