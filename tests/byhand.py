"""Problems worked by hand: two clients, a linear network, every formula written out in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from personae.core.holdings import ClientFaces
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from toys import Crowd, Faces, random_faces

LR, MOMENTUM, DECAY, SCALE, MARGIN = 0.1, 0.9, 0.01, 8.0, 0.3

Loss = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[float, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class LinearPlan:
    """Pixels times a matrix."""

    embedding: int = 3

    def build(self, generator: torch.Generator | None = None) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(2 * 2 * 3, self.embedding, bias=False))
        nn.init.normal_(module[1].weight, std=0.5, generator=generator)
        return module


@dataclass(frozen=True)
class Pair(Crowd):
    clients: tuple[str, ...] = ("ann", "bob")
    sizes: tuple[tuple[int, int], ...] = ((2, 2), (3, 3))  # people, images of each: 4 and 9 images

    def of(self, client: str) -> ClientFaces:
        people, images = self.sizes[self.clients.index(client)]
        faces = random_faces(people, people, images, side=2)
        return ClientFaces(faces, faces, faces)


def inputs(faces: Faces) -> np.ndarray:
    """Channel by channel, row by row, in [-1, 1]."""
    return faces.pixels.numpy().transpose(0, 3, 1, 2).reshape(len(faces), -1) / 127.5 - 1


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def through_unit(rows: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The gradient at x of a function of x/|x|."""
    direction = unit(rows)
    along = (slope * direction).sum(1, keepdims=True)
    return (slope - along * direction) / np.linalg.norm(rows, axis=1, keepdims=True)


def cosface(x: np.ndarray, labels: np.ndarray, theta: np.ndarray, rows: np.ndarray):
    """Loss, gradient in theta, gradient in the rows."""
    features = x @ theta.T
    target = np.eye(len(rows))[labels]
    logits = SCALE * (unit(features) @ unit(rows).T - MARGIN * target)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(shares[target == 1]).mean()
    slope = SCALE * (shares - target) / len(x)
    in_features = through_unit(features, slope @ unit(rows))
    return loss, in_features.T @ x, through_unit(rows, slope.T @ unit(features))


def client(faces: Faces, theta: np.ndarray, rows: np.ndarray | None, steps: int, loss_of: Loss = cosface):
    """A client's round: full batches, momentum from rest; gives theta_k, W_k and the mean loss."""
    x, labels = inputs(faces), faces.labels.numpy()
    if rows is None:  # each person's mean direction
        rows = unit(np.stack([unit(x @ theta.T)[labels == person].sum(0) for person in range(faces.classes)]))
    speed_theta, speed_rows, losses = np.zeros_like(theta), np.zeros_like(rows), []
    for _ in range(steps):
        loss, in_theta, in_rows = loss_of(x, labels, theta, rows)
        speed_theta = MOMENTUM * speed_theta + in_theta + DECAY * theta
        speed_rows = MOMENTUM * speed_rows + in_rows + DECAY * rows
        theta, rows = theta - LR * speed_theta, rows - LR * speed_rows
        losses.append(loss)
    return theta, rows, np.mean(losses)


def training(steps: int) -> LocalSGD:
    """What `client` does by hand."""
    return LocalSGD(
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        batch_size=64,
        iterations=steps,
        augmentation=Augmentation(flip=False, shift=0, colour=0.0),
    )
