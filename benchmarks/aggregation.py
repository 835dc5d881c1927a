"""The mean of 40 models of 24 million parameters (iresnet18): one flat vector against a dictionary of tensors.

    python benchmarks/aggregation.py [--models 40] [--repeats 5]

The dictionary is what one writes without a framework: per name, a sum of weighted tensors, divided at the end. Models
arrive one by one and are not kept. Peak memory is that above the arriving model, which both need.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from personae import Network
from personae.core.layout import Layout
from personae.parts.averaging import weighted_mean


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


WAYS = {"flat vectors": with_vectors, "dictionaries": with_dictionaries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    layout = Layout.of(Network(name="iresnet18", embedding=512, height=112, width=112).layout())
    flat = torch.randn(layout.size)
    if options.memory_of:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = peak()
        WAYS[options.memory_of](flat, layout, 3)
        print(json.dumps(peak() - before))
        return
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(options.repeats + 1):
        for name, way in WAYS.items():
            began = time.perf_counter()
            way(flat, layout, options.models)
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    slowest = statistics.median(seconds["dictionaries"])
    print(
        f"{options.models} models of {layout.size / 1e6:.1f} M parameters ({4 * layout.size / 1e6:.0f} MB), one thread"
    )
    for name, values in seconds.items():
        command = [sys.executable, *sys.argv, "--memory-of", name]
        used = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        median = statistics.median(values)
        print(f"{name:14}{median:8.2f} s   ratio {slowest / median:5.2f}   peak {used:6.0f} MB")


def peak() -> float:
    """Resident memory of this process at its highest, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
