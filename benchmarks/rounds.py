"""One federated round in personae and in the plainest PyTorch loop, interleaved; and memory against clients.

    python benchmarks/rounds.py [--repeats 5] [--clients 40] [--images 100]

The loop is what one writes without a framework: a deep copy of the model for each client, PyTorch's own SGD with its
default threads, a dictionary of sums. Both train the same network on the same images with the same loss, batch size
and augmentation (a flip). Times are medians of interleaved repeats; read the ratios, not the seconds.
"""

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from personae import Augmentation, ClientInfo, Federation, FedPE, Firewall, LocalSGD, Margin, Network, Stage
from personae.core.algorithm import Server
from personae.core.rng import generator
from personae.runtime.exchange import Exchange
from personae.runtime.federation import ClientFaces
from personae.runtime.inprocess import available_cores, local_transport
from personae.runtime.round import federated_round

SIZE, POOL, BATCH, IDENTITIES = 64, 4000, 32, 5
NETWORK = Network(name="small", embedding=64, height=SIZE, width=SIZE)


@dataclass(frozen=True)
class PooledImages:
    """A client's images: a window into one memory-mapped file of random pixels that all clients share."""

    path: Path
    first: int
    count: int

    @property
    def classes(self) -> int:
        return IDENTITIES

    @cached_property
    def labels(self) -> torch.Tensor:
        return torch.arange(self.count) % IDENTITIES

    def __len__(self) -> int:
        return self.count

    def images(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._pool.take((self.first + positions.numpy()) % POOL, axis=0))

    @cached_property
    def _pool(self) -> np.ndarray:
        return np.memmap(self.path, np.uint8, "r", shape=(POOL, SIZE, SIZE, 3)).view(np.ndarray)


@dataclass(frozen=True)
class Crowd:
    path: Path
    count: int
    images: int

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(f"client-{index:05d}" for index in range(self.count))

    @property
    def newcomers(self) -> frozenset[str]:
        return frozenset()

    def of(self, client: str) -> ClientFaces:
        train = PooledImages(self.path, int(client.removeprefix("client-")) * self.images, self.images)
        return ClientFaces(train, train, train)


def nothing_to_judge(*_: object) -> dict[str, float]:
    return {}


class Personae:
    """Rounds of FedPE through the engine's own parts: transport, firewall, spool, private state on disk."""

    def __init__(self, folder: Path, crowd: Crowd, training: LocalSGD, workers: int) -> None:
        self.stage = Stage(
            name="round", algorithm=FedPE(training=training, margin=Margin(), rows="random"), rounds=1000
        )
        self.federation = Federation(0, (self.stage,), NETWORK, crowd, folder / "private", nothing_to_judge)
        self.transport = local_transport(self.federation, workers)
        self.backbone = self.federation.backbone()
        self.clients = [ClientInfo(name, index) for index, name in enumerate(crowd.clients)]
        self.scratch = folder / "scratch"
        self.state = self.stage.algorithm.start(None, self._server(0))
        self.rounds = 0

    def round(self) -> None:
        self.rounds += 1
        exchange = Exchange(self.transport, "train", self.stage, self.rounds)
        outcome = federated_round(
            self.stage, self.state, self._server(self.rounds), self.clients, exchange, Firewall(), self.scratch, _ignore
        )
        self.state = outcome.state

    def _server(self, round_: int) -> Server:
        return Server(self.backbone.state(), self.backbone, None, None, generator(0, round_), round_, 1000)


class PlainLoop:
    """Federated averaging as in a notebook."""

    def __init__(self, crowd: Crowd, training: LocalSGD, threads: int) -> None:
        self.model = NETWORK.build()
        self.heads = [torch.randn(IDENTITIES, NETWORK.embedding) for _ in crowd.clients]
        self.faces = [crowd.of(name).train for name in crowd.clients]
        self.training, self.threads = training, threads

    def round(self) -> None:
        torch.set_num_threads(self.threads)
        total: dict[str, torch.Tensor] = {}
        for faces, head in zip(self.faces, self.heads, strict=True):
            model = copy.deepcopy(self.model).train()
            rows = head.requires_grad_()
            options = self.training
            optimiser = torch.optim.SGD(
                [*model.parameters(), rows],
                lr=options.lr,
                momentum=options.momentum,
                weight_decay=options.weight_decay,
            )
            order = torch.randperm(len(faces))
            for _ in range(int(options.epochs or 1)):
                for start in range(0, len(faces), BATCH):
                    positions = order[start : start + BATCH]
                    images = faces.images(positions).permute(0, 3, 1, 2).float().div(127.5).sub(1)
                    if torch.rand(()) < 0.5:
                        images = images.flip(3)
                    labels = faces.labels[positions]
                    cosines = F.normalize(model(images)) @ F.normalize(rows).t()
                    loss = F.cross_entropy(30 * (cosines - 0.4 * F.one_hot(labels, IDENTITIES)), labels)
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            for name, value in model.state_dict().items():
                total[name] = total.get(name, 0) + value.double() / len(self.faces)
        self.model.load_state_dict({name: value.to(torch.float32) for name, value in total.items()}, strict=False)


def _ignore(count: int) -> None:
    """Nobody watches the progress."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pixels = np.random.default_rng(0).integers(0, 256, (POOL, SIZE, SIZE, 3), dtype=np.uint8)
        pixels.tofile(folder / "pixels")
        del pixels
        if options.memory_of:
            memory_of(folder, options.memory_of)
        else:
            time_rounds(folder, options)
            show_memory()


def time_rounds(folder: Path, options: argparse.Namespace) -> None:
    crowd = Crowd(folder / "pixels", options.clients, options.images)
    training = LocalSGD(batch_size=BATCH, epochs=1, augmentation=Augmentation(flip=True, shift=0, colour=0.0))
    cores = available_cores()
    contenders = {
        f"plain loop, {cores} threads": PlainLoop(crowd, training, cores),
        "plain loop, 1 thread": PlainLoop(crowd, training, 1),
        "personae, 1 worker": Personae(folder / "one", crowd, training, 1),
        f"personae, {cores} workers": Personae(folder / "many", crowd, training, cores),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(options.repeats + 1):
        for name, contender in contenders.items():
            began = time.perf_counter()
            contender.round()
            if repeat:  # the first round of each warms up
                seconds[name].append(time.perf_counter() - began)
    base = statistics.median(next(iter(seconds.values())))
    images = options.clients * options.images
    print(
        f"one round: {options.clients} clients x {options.images} images of {SIZE}x{SIZE}, network small, batch {BATCH}"
    )
    print(f"{'':26}{'median s':>10}{'images/s':>10}{'ratio':>8}")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:26}{median:10.2f}{images / median:10.0f}{base / median:8.2f}")


def memory_of(folder: Path, clients: int) -> None:
    """Peak memory of this process for rounds over so many clients, apart from what it takes to start."""
    training = LocalSGD(batch_size=8, iterations=1, augmentation=Augmentation(flip=False, shift=0, colour=0.0))
    rounds = Personae(folder, Crowd(folder / "pixels", clients, 16), training, 1)
    began = time.perf_counter()
    rounds.round()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"clients": clients, "peak_mb": round(peak), "seconds": round(time.perf_counter() - began, 1)}))


def show_memory() -> None:
    print("\npeak memory of the process, one round with one step a client (the updates of 1,000 clients are 1.2 GB)")
    for clients in (10, 100, 1000):
        command = [sys.executable, __file__, "--memory-of", str(clients)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{found['clients']:6} clients{found['peak_mb']:8} MB{found['seconds']:8.1f} s")


if __name__ == "__main__":
    main()
