"""One meta step beside four plain steps, which is what its gradients cost: D, D', and D'' from two sides.

    python benchmarks/meta.py [--batch 64] [--side 64] [--repeats 9] [--network small]

Both train the same network on the same faces with the same augmentation, on one thread. Times are medians of
interleaved repeats; read the ratios, not the seconds. First-order meta steps are two gradients; exact ones
differentiate twice.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from personae import Backbone, LocalSGD, Margin, MetaSGD, Network
from personae.parts.batches import Batch

CLASSES, STEPS = 24, 4


class Faces:
    """Noise: how long a step takes does not depend on what is on the pictures."""

    def __init__(self, count: int, side: int) -> None:
        source = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (count, side, side, 3), generator=source).to(torch.uint8)
        self.labels = torch.arange(count) % CLASSES
        self.classes = CLASSES

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Tensor) -> Tensor:
        return self.pixels[positions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--network", default="small")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = Network(name=options.network, embedding=64, height=options.side, width=options.side)
    backbone = Backbone(network.build(), network.embedding)
    beginning = backbone.state()
    faces = Faces(12 * options.batch, options.side)  # whole batches for both
    margin = Margin(kind="arcface", scale=8.0, margin=0.5)
    plain = LocalSGD(lr=0.01, batch_size=options.batch, iterations=4 * STEPS)
    trainers: dict[str, LocalSGD | MetaSGD] = {"four plain steps": plain}
    for order in ("hessian-free", "first", "exact"):
        trainers[f"meta step, {order}"] = MetaSGD(order=order, batch_size=options.batch, iterations=STEPS)

    def run(trainer: LocalSGD | MetaSGD) -> Callable[[], object]:
        def train() -> object:
            module = backbone.load(beginning)
            rows = torch.randn(CLASSES, network.embedding, generator=torch.Generator().manual_seed(1))

            def loss(batch: Batch) -> Tensor:
                return margin.loss(module(batch.images), rows, batch.labels)

            return trainer.fit(backbone, [rows], faces, loss, torch.Generator().manual_seed(2))

        return train

    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for repeat in range(options.repeats + 1):
        for name, trainer in trainers.items():
            work = run(trainer)
            began = time.process_time()  # of this process: others may share the cores
            work()
            if repeat:  # the first one warms up
                seconds[name].append((time.process_time() - began) / STEPS)
    base = statistics.median(seconds["four plain steps"])
    size = f"{options.network} {options.side}x{options.side}, batches of {options.batch}"
    print(f"{size:44}{'median ms':>12}{'x four plain':>14}")
    for name, values in seconds.items():
        paired = statistics.median(a / b for a, b in zip(values, seconds["four plain steps"], strict=True))
        print(f"{name:44}{1000 * statistics.median(values):12.1f}{paired:14.3f}")
    ratio = statistics.median(seconds["meta step, hessian-free"]) / base
    print(f"hessian-free: {ratio:.3f} of four plain steps; the goal is at most 1.1")


if __name__ == "__main__":
    main()
