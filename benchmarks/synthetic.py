"""How many synthetic faces a second: `python benchmarks/synthetic.py [device]`, one thread on a CPU."""

import statistics
import sys
import time

import torch

from personae.data.synthetic import render

SIZES = {64: 512, 112: 256}  # images rendered at a time
REPEATS = 5


def seconds(size: int, count: int, device: torch.device) -> float:
    people = torch.arange(count)
    start = time.perf_counter()
    # .cpu() waits for the device
    render(people, people, seed=0, size=size, device=device)[-1, -1, -1].cpu()
    return time.perf_counter() - start


def main(device: torch.device) -> None:
    torch.set_num_threads(1)
    for size, count in SIZES.items():
        if device.type != "cpu":
            count *= 32
        seconds(size, count, device)
        median = statistics.median(seconds(size, count, device) for _ in range(REPEATS))
        print(f"{size:>3} x {size:<3} {count / median:8.0f} images/s on {device}")


if __name__ == "__main__":
    main(torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
