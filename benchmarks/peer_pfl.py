"""Rounds of federated averaging in pfl-research (PyPI `pfl`), on the networks, images and loss of `crowd.py`.

All goes through pfl's own parts: `SimulatedBackend`, `FederatedAveraging`, `PyTorchModel`, a dataset per user. As pfl
wants them, a user's images are one tensor; here they are bytes, read in shuffled order from the memory-mapped store,
and become floats batch by batch in the loss. One process, with PyTorch's default threads, which pfl leaves alone.

What differs from the others: pfl's averaging has no private part, so that the class rows are a parameter of the
module, averaged like any other (to keep them, write your own algorithm over pfl's storage of user states).
It averages parameters only: the running statistics of BatchNorm are not sent, but drift on from user to user.
"""

import os
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crowd import MARGIN, Crowd
from personae import LocalSGD, Network
from personae.core.threads import available_cores


class Faces(nn.Module):
    """A network with class rows, and the two methods that pfl asks of a module."""

    def __init__(self, network: Network, classes: int) -> None:
        super().__init__()
        self.backbone = network.build()
        self.rows = nn.Parameter(torch.randn(classes, network.embedding))

    def loss(self, pixels: Tensor, labels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2).float().mul_(1 / 127.5).sub_(1)
        if torch.rand(()) < 0.5:
            images = images.flip(3)
        cosines = F.normalize(self.backbone(images)) @ F.normalize(self.rows).t()
        return F.cross_entropy(MARGIN.scale * (cosines - MARGIN.margin * F.one_hot(labels, len(self.rows))), labels)

    def metrics(self, *_: Tensor) -> dict[str, float]:
        """Nothing is evaluated, though pfl insists on it in the first round."""
        return {}


class PflRounds:
    """One iteration of pfl over all clients, as often as it is asked."""

    def __init__(self, folder: Path, crowd: Crowd, network: Network, training: LocalSGD) -> None:  # noqa: ARG002
        os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")
        try:
            from pfl.aggregate.simulate import SimulatedBackend
            from pfl.aggregate.weighting import WeightByDatapoints
            from pfl.algorithm.base import NNAlgorithmParams
            from pfl.algorithm.federated_averaging import FederatedAveraging
            from pfl.data.federated_dataset import FederatedDataset
            from pfl.data.pytorch import PyTorchTensorDataset
            from pfl.data.sampling import get_user_sampler
            from pfl.hyperparam.base import NNTrainHyperParams
            from pfl.model.pytorch import PyTorchModel
        except ImportError as error:
            raise SystemExit(f"pfl cannot be imported ({error}); pip install pfl==0.6.0") from error

        faces = {name: crowd.of(name).train for name in crowd.clients}

        def user(name: str) -> PyTorchTensorDataset:
            order = torch.randperm(len(faces[name]))
            return PyTorchTensorDataset((faces[name].images(order), faces[name].labels[order]), user_id=name)

        module = Faces(network, max(crowd.identities)).train()
        sgd = partial(torch.optim.SGD, momentum=training.momentum, weight_decay=training.weight_decay)
        self.model = PyTorchModel(module, sgd, torch.optim.SGD(module.parameters(), lr=1.0))
        users = FederatedDataset(user, get_user_sampler("minimize_reuse", crowd.clients))  # each once, in their order
        self.backend = SimulatedBackend(users, users, [WeightByDatapoints()])
        self.algorithm = FederatedAveraging()
        self.plan = partial(
            NNAlgorithmParams, evaluation_frequency=1 << 62, train_cohort_size=crowd.count, val_cohort_size=None
        )
        self.training = NNTrainHyperParams(
            local_batch_size=training.batch_size,
            local_num_epochs=int(training.epochs or 1),
            local_learning_rate=training.lr,
        )
        self.rounds = 0

    def round(self) -> None:
        torch.set_num_threads(available_cores())
        self.rounds += 1
        plan = self.plan(central_num_iterations=self.rounds)  # the algorithm goes on from the iteration it has reached
        self.algorithm.run(plan, self.backend, self.model, self.training, send_metrics_to_platform=False)
