"""How much of the machine's own peak local training reaches.

    python benchmarks/peak.py [--repeats 5] [--threads 1]

Floating-point operations are counted from the shapes of convolutions and linear layers (a multiplication and an
addition are two); normalisation, activations, augmentation and the optimiser count as nothing, so they show as what is
missing. The backward pass takes twice the forward pass: once for the weights, once for the inputs, which the first
layer does not need. Peaks are measured in the same run: a square matrix product, and a 3x3 convolution of many channels
with its backward pass. Last, torch's profiler says where the time of one more round goes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from crowd import NETWORKS, Crowd, Rounds, random_pixels, training

BATCH = 32


def forward_flops(module: nn.Module, height: int, width: int) -> dict[str, int]:
    """Of one image, by layer, in the order of use."""
    found: dict[str, int] = {}

    def count(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001
            if isinstance(layer, nn.Conv2d):
                each = layer.in_channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
                found[name] = 2 * each * output[0].numel()
            elif isinstance(layer, nn.Linear):
                found[name] = 2 * layer.in_features * layer.out_features

        return hook

    hooks = [layer.register_forward_hook(count(name)) for name, layer in module.named_modules()]
    with torch.no_grad():
        module.eval()(torch.zeros(1, 3, height, width))
    for each in hooks:
        each.remove()
    return found


def training_flops(forward: dict[str, int]) -> int:
    """Of one image: forward, and backward but for the inputs of the first layer."""
    return 3 * sum(forward.values()) - next(iter(forward.values()))


def gemm_peak(size: int = 1024) -> float:
    left, right = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / _seconds(lambda: left @ right)


def convolution_peak(channels: int = 128, side: int = 28) -> float:
    images = torch.randn(BATCH, channels, side, side).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(channels, channels, 3, 3).to(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        F.conv2d(images, weight, padding=1).sum().backward()  # type: ignore[no-untyped-call]

    return 3 * 2 * channels * 9 * channels * side * side * BATCH / _seconds(step)


def where_time_goes(rounds: Rounds, most: int = 8) -> dict[str, float]:
    """Share of a round's time that each of the costliest operations takes itself."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        rounds.round()
    times = {entry.key: entry.self_cpu_time_total for entry in seen.key_averages()}
    total = sum(times.values())
    return {name: times[name] / total for name in sorted(times, key=times.__getitem__, reverse=True)[:most]}


def _seconds(work: Callable[[], object], repeats: int = 7) -> float:
    work()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one thread, torch {torch.__version__}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as name:
        for network, plan in NETWORKS.items():
            flops = training_flops(forward_flops(plan.build(), plan.height, plan.width))
            crowd = Crowd(random_pixels(Path(name), plan.height), 4, 96)
            rounds = Rounds(Path(name) / network, crowd, plan, training(BATCH))
            rounds.round()
            reached, gemm, convolution = [], [], []
            for _ in range(options.repeats):
                began = time.perf_counter()
                rounds.round()
                reached.append(flops * 4 * 96 / (time.perf_counter() - began))
                gemm.append(gemm_peak())
                convolution.append(convolution_peak())
            median, whole, conv = (statistics.median(values) / 1e9 for values in (reached, gemm, convolution))
            print(
                f"{network:14} {flops / 1e6:8.1f} MFLOP an image, {median:6.1f} GFLOP/s in training: "
                f"{median / whole:.0%} of the matrix product ({whole:.1f}), "
                f"{median / conv:.0%} of the convolution ({conv:.1f})",
                flush=True,
            )
            print("    " + ", ".join(f"{name} {share:.0%}" for name, share in where_time_goes(rounds).items()))


if __name__ == "__main__":
    main()
