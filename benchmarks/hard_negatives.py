"""Hard negatives at the paper's scale beside the matrix product that nobody can do without.

    python benchmarks/hard_negatives.py [--public 600000] [--local 6000] [--width 512] [--threshold 0.4]

Public features are made block by block and never held together, as they are memory-mapped in a run. Each block is first
multiplied with all local features and nothing else done (the floor, in the tiles that are fastest here), then searched
in float32 and in bfloat16, in turn and on one thread, so that other work on the machine meets all three alike. That
both searches choose the same samples is asserted. Read the ratios, not the seconds. Memory is the peak of the whole
process: interpreter, libraries, features and all.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.parts.hard_negatives import IN_CACHE, HardNegatives

BLOCK = 8192
T = TypeVar("T")


def floor(public: Tensor, local: Tensor, products: Tensor) -> None:
    for rows in public.split(IN_CACHE):
        for columns in local.split(IN_CACHE):
            torch.mm(rows, columns.T, out=products[: len(rows) * len(columns)].view(len(rows), len(columns)))


class Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return result


def directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(count, width, generator=generator))


def resembling(local: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Features at a cosine of about 0.1 to 0.45 to some local one, as faces have: one in seven is above 0.4."""
    nearest = local[torch.randint(len(local), (count,), generator=generator)]
    cosine = 0.1 + 0.35 * torch.rand(count, 1, generator=generator)
    return F.normalize(cosine * nearest + (1 - cosine**2).sqrt() * directions(count, local.shape[1], generator))


def peak() -> float:
    """Megabytes that were resident at most, from Linux itself."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--public", type=int, default=600_000)
    parser.add_argument("--local", type=int, default=6000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--threshold", type=float, default=0.4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    local = directions(options.local, options.width, source)
    products, stopwatch, chosen = torch.empty(IN_CACHE * IN_CACHE), Stopwatch(), 0
    single, half = HardNegatives(local, options.threshold), HardNegatives(local, options.threshold, "bfloat16")
    floor(local[:BLOCK], local, products)  # warm
    for start in range(0, options.public, BLOCK):
        public = resembling(local, min(BLOCK, options.public - start), source)
        stopwatch("product alone (floor)", lambda public=public: floor(public, local, products))
        found = stopwatch("hard negatives, float32 first", lambda public=public: single.among(public))
        same = stopwatch("hard negatives, bfloat16 first", lambda public=public: half.among(public))
        assert torch.equal(found, same)
        chosen += int(found.sum())
    print(f"{options.public:,} public x {options.local:,} local x {options.width}: {chosen:,} chosen")
    base = stopwatch.seconds["product alone (floor)"]
    for name, seconds in stopwatch.seconds.items():
        print(f"{name:32}{seconds:9.1f} s{seconds / base:8.2f} x floor")
    print(f"peak memory of the process: {peak():.0f} MB")


if __name__ == "__main__":
    main()
