"""One way to run federated rounds, in a process of its own that runs a round whenever it is told to.

    python benchmarks/contender.py NAME NETWORK CLIENTS IMAGES FOLDER

It says "ready" when it has started, then answers each line that it reads with "done", after a round.
"""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F

from crowd import IDENTITIES, NETWORKS, Crowd, Rounds, random_pixels, training
from personae import LocalSGD, Network
from personae.core.acceleration import Acceleration
from personae.core.threads import torch_threads
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess

BATCH = 32


class Contender(Protocol):
    def round(self) -> None: ...


class PlainLoop:
    """Federated averaging as in a notebook: a deep copy for each client, PyTorch's own SGD, a dictionary of sums.

    `planes`: batches in the order in which a data loader stacks them, channel after channel; else in that of the bytes
    on disk, which happens to be the faster one.
    """

    def __init__(
        self, crowd: Crowd, network: Network, options: LocalSGD, *, threads: int, planes: bool = False
    ) -> None:
        torch.set_num_threads(threads)
        self.planes = planes
        self.model = network.build()
        self.heads = [torch.randn(IDENTITIES, network.embedding) for _ in crowd.clients]
        self.faces = [crowd.of(name).train for name in crowd.clients]
        self.options = options

    def round(self) -> None:
        options, total = self.options, dict[str, torch.Tensor]()
        for faces, rows in zip(self.faces, self.heads, strict=True):
            model = copy.deepcopy(self.model).train()
            optimiser = torch.optim.SGD(
                [*model.parameters(), rows.requires_grad_()],
                lr=options.lr,
                momentum=options.momentum,
                weight_decay=options.weight_decay,
            )
            order = torch.randperm(len(faces))
            for positions in order.tensor_split(options.steps(len(faces))):  # equal batches, as personae makes them
                images = faces.images(positions).permute(0, 3, 1, 2).float().div(127.5).sub(1)
                if torch.rand(()) < 0.5:
                    images = images.flip(3)
                if self.planes:
                    images = images.contiguous()
                labels = faces.labels[positions]
                cosines = F.normalize(model(images)) @ F.normalize(rows).t()
                loss = F.cross_entropy(30 * (cosines - 0.4 * F.one_hot(labels, IDENTITIES)), labels)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            for name, value in model.state_dict().items():
                total[name] = total.get(name, 0) + value.double() / len(self.faces)
        self.model.load_state_dict({name: value.to(torch.float32) for name, value in total.items()}, strict=False)


class ManyThreads(SameProcess):
    """One client after the other, with two threads."""

    def __init__(self, host: ClientHost, kept: object) -> None:
        self._host, self._kept = host, kept  # type: ignore[assignment]

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        for request in self._kept.noting(requests):
            with torch_threads(2):
                reply = self._host.handle(request)
            yield reply


def many_threads(rounds: Rounds) -> Rounds:
    rounds.transport = ManyThreads(rounds.transport._host, rounds.transport._kept)  # type: ignore[attr-defined]
    return rounds


def contenders(folder: Path, crowd: Crowd, network: Network) -> dict[str, Callable[[], Contender]]:
    options = training(BATCH)

    def personae(workers: int, **how: object) -> Rounds:
        return Rounds(folder, crowd, network, **{"training": options, **how}, workers=workers)  # type: ignore[arg-type]

    def pfl() -> Contender:
        from peer_pfl import PflRounds

        return PflRounds(folder, crowd, network, options)

    def flower() -> Contender:
        from peer_flower import FlowerRounds

        return FlowerRounds(folder, crowd, network, options)

    return {
        "plain-2": lambda: PlainLoop(crowd, network, options, threads=2),
        "plain-2-planes": lambda: PlainLoop(crowd, network, options, threads=2, planes=True),
        "plain-1": lambda: PlainLoop(crowd, network, options, threads=1),
        "personae-1": lambda: personae(1),
        "personae-2": lambda: personae(2),
        "personae-2-channels-first": lambda: personae(2, acceleration=Acceleration(channels_last=False)),
        "personae-2-slow-prelu": lambda: personae(2, acceleration=Acceleration(prelu=False)),
        "personae-2-freeing": lambda: personae(2, acceleration=Acceleration(memory=False)),
        "personae-2-bf16": lambda: personae(2, training=training(BATCH, precision="bfloat16")),
        "personae-threads": lambda: many_threads(personae(1)),
        "pfl": pfl,
        "flower": flower,
    }


def main() -> None:
    name, network, clients, images, folder = sys.argv[1:]
    plan = NETWORKS[network]
    place = Path(folder)
    crowd = Crowd(random_pixels(place, plan.height), int(clients), int(images))
    contender = contenders(place / name, crowd, plan)[name]()
    print("ready", flush=True)
    for _ in sys.stdin:
        contender.round()
        print("done", flush=True)


if __name__ == "__main__":
    main()
