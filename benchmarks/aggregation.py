"""One model out of 40 of 24 million parameters (iresnet18): flat vectors against dictionaries, and every robust rule.

    python benchmarks/aggregation.py [--models 40] [--repeats 5]
    python benchmarks/aggregation.py --models 1000 --parameters 12_000_000 --only median --repeats 1 --device cuda

The dictionary is what one writes without a framework: per name, a sum of weighted tensors, divided at the end. Models
arrive one by one and are not kept. The rules that look at all models at once keep them in a file and read it in blocks;
beside them stands the median of one tensor of all models, as one writes it without a framework. Peak memory is that
above the arriving model, which all need; pages of a file that the system may drop at any time are not counted. The file
takes 4 bytes for every parameter of every model, in the system's folder for temporary files.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from personae import Network
from personae.aggregation import GeometricMedian, Median, MultiKrum, TrimmedMean
from personae.core.aggregation import Aggregation, Workbench, weighted_mean
from personae.core.layout import Layout


def arriving(flat: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """The same memory each time: what is measured is the mean, not the making of models."""
    for _ in range(count):
        yield flat


def with_vectors(flat: torch.Tensor, layout: Layout, count: int) -> torch.Tensor:  # noqa: ARG001
    return weighted_mean((model, float(number + 1)) for number, model in enumerate(arriving(flat, count)))


def with_dictionaries(flat: torch.Tensor, layout: Layout, count: int) -> dict[str, torch.Tensor]:
    total: dict[str, torch.Tensor] = {}
    weight = 0.0
    for number, model in enumerate(arriving(flat, count)):
        weight += number + 1
        for name, entry in layout.views(model).items():
            total[name] = total.get(name, 0) + (number + 1) * entry
    return {name: entry / weight for name, entry in total.items()}


def by_rule(rule: Aggregation, flat: torch.Tensor, layout: Layout, count: int) -> torch.Tensor:  # noqa: ARG001
    return rule.combine(((model, 1.0) for model in arriving(flat, count)), flat, Workbench())


def median_of_a_tensor(flat: torch.Tensor, layout: Layout, count: int) -> torch.Tensor:  # noqa: ARG001
    return torch.stack([model.clone() for model in arriving(flat, count)]).median(dim=0).values


Way = Callable[[torch.Tensor, Layout, int], object]
MEANS: dict[str, Way] = {"flat vectors": with_vectors, "dictionaries": with_dictionaries}
RULES: dict[str, Way] = {
    "one tensor": median_of_a_tensor,
    "median": partial(by_rule, Median()),
    "trimmed-mean": partial(by_rule, TrimmedMean(cut=0.1)),
    "geometric-median": partial(by_rule, GeometricMedian()),
    "multi-krum": partial(by_rule, MultiKrum(faulty=1)),
}
WAYS = {**MEANS, **RULES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--parameters", type=int, help="vectors of so many entries instead of those of the network")
    parser.add_argument("--only", help="rules, with commas; without means and without a yardstick")
    parser.add_argument("--device", default="cpu", help="where the blocks are computed")
    parser.add_argument("--repeats", type=int, default=5, help="after a first round that is not counted")
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    layout = Layout.of(Network(name="iresnet18", embedding=512, height=112, width=112).layout())
    flat = torch.randn(options.parameters or layout.size, device=options.device)
    if options.memory_of:
        watch = Watch()
        WAYS[options.memory_of](flat, layout, options.models if options.memory_of in RULES else 3)
        print(json.dumps(watch.highest()))
        return
    print(
        f"{options.models} models of {len(flat) / 1e6:.1f} M parameters ({4 * len(flat) / 1e6:.0f} MB), one thread, "
        f"{options.device}"
    )
    for ways, yardstick in comparisons(options.only, whole=options.parameters is None):
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way(flat, layout, options.models)
                if repeat:
                    seconds[name].append(time.perf_counter() - began)
        slowest = statistics.median(seconds[yardstick])
        for name, values in seconds.items():
            command = [sys.executable, *sys.argv, "--memory-of", name]
            used = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            median = statistics.median(values)
            print(f"{name:18}{median:8.2f} s   ratio {slowest / median:5.2f}   peak {used:6.0f} MB")


def comparisons(only: str | None, *, whole: bool) -> list[tuple[dict[str, Way], str]]:
    """What is measured side by side, and which of it is the yardstick; dictionaries are of whole models."""
    if only:
        chosen = {name: RULES[name] for name in only.split(",")}
        return [(chosen, next(iter(chosen)))]
    return [*([(MEANS, "dictionaries")] if whole else []), (RULES, "one tensor")]


class Watch(threading.Thread):
    """Anonymous memory of this process above what it is now, at its highest, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._before = self._peak = self._now()
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.002):
            self._peak = max(self._peak, self._now())

    def highest(self) -> float:
        self._over.set()
        self.join()
        return (self._peak - self._before) / 1024

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
