"""C-FINCH beside finch-clust, DBSCAN and K-means; and its first neighbours beside the matrix product they rest on.

    python benchmarks/clustering.py [--images 10000 50000 200000] [--repeats 3] [--cap 900] [--floor-share 1]

Features of 512 numbers, 20 images a person, in which 64 directions matter, so that people are not trivially apart. Each
contender runs in a process of its own with one thread, for at most `--cap` seconds: memory is the peak of that process
less what it holds with the features loaded; the F-score is over all pairs of images. K-means is told the true number
of people. finch-clust is run as it comes: above 20,000 images it approximates neighbours by pynndescent, and gives up
where that is not installed; its partition is the one with the best F-score, which nobody would know.

The floor is the product of all features with all features, in the same blocks, values thrown away. It is interleaved
with the search in one process. The search needs every pair once and so computes half of it. With `--floor-share` 16
only a sixteenth of the rows is multiplied, and the time is multiplied by 16.

Seconds are those of the processor: everything has one thread, and other work on the machine shall not count.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.parts.clustering import DBSCAN, CFinch, KMeans, agreement, first_neighbours
from personae.parts.clustering.neighbours import BLOCK

WIDTH, DIRECTIONS, IMAGES, NOISE = 512, 64, 20, 0.8


def crowd(images: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    people = torch.arange(images) // IMAGES
    centres = F.normalize(torch.randn(images // IMAGES + 1, DIRECTIONS, generator=source), dim=1)
    spread = F.normalize(torch.randn(images, DIRECTIONS, generator=source), dim=1)
    turned = torch.linalg.qr(torch.randn(WIDTH, DIRECTIONS, generator=source))[0].T
    return F.normalize((centres[people] + NOISE * spread) @ turned, dim=1), people


def finch_clust(features: Tensor, people: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from finch import FINCH

        levels = FINCH(features.numpy(), verbose=False, random_state=0)[0].reshape(len(features), -1).T
    labels = [torch.from_numpy(level.astype("int64")) for level in levels]
    return max(labels, key=lambda level: agreement(level, people).f_score)


CONTENDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "C-FINCH": lambda features, _: CFinch()(features, torch.Generator()),
    "finch-clust": finch_clust,
    "DBSCAN": lambda features, _: DBSCAN(radius=0.8)(features, torch.Generator()),
    "K-means": lambda features, people: KMeans(clusters=int(people.max()) + 1)(
        features, torch.Generator().manual_seed(0)
    ),
}


def floor(features: Tensor, share: int) -> None:
    product = torch.empty(BLOCK, BLOCK)
    for start in range(0, math.ceil(len(features) / share), BLOCK):
        rows = features[start : start + BLOCK]
        for other in range(0, len(features), BLOCK):
            columns = features[other : other + BLOCK]
            torch.mm(rows, columns.T, out=product[: len(rows), : len(columns)])


def show_floor(images: int, repeats: int, share: int) -> None:
    features, _ = crowd(images)
    seconds: dict[str, list[float]] = {"floor": [], "search": []}
    for _ in range(repeats):
        began = time.process_time()
        floor(features, share)
        seconds["floor"].append((time.process_time() - began) * share)
        began = time.process_time()
        first_neighbours(features)
        seconds["search"].append(time.process_time() - began)
    product, search = (statistics.median(values) for values in seconds.values())
    print(f"\n{images} x {WIDTH}: product {product:.1f} s, neighbours {search:.1f} s, x floor {search / product:.2f}")


def show(images: int, cap: float) -> None:
    print(f"{images} x {WIDTH}{'s':>20}{'x C-FINCH':>12}{'peak MB':>10}{'F-score':>10}{'clusters':>10}")
    ours = None
    for name in CONTENDERS:
        found = apart(name, images, cap)
        if isinstance(found, str):
            print(f"{name:20}{found:>16}")
            continue
        ours = ours or found["seconds"]
        row = f"{found['seconds']:16.1f}{found['seconds'] / ours:12.2f}{found['megabytes']:10}"
        print(f"{name:20}{row}{100 * found['f_score']:10.2f}{found['clusters']:10}", flush=True)


def apart(name: str, images: int, cap: float) -> dict[str, float] | str:
    command = [sys.executable, __file__, "--only", name, "--images", str(images)]
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=cap)
    except subprocess.TimeoutExpired:
        return f"over {cap:.0f} s"
    if ended.returncode:
        return ended.stderr.strip().splitlines()[-1][:90] if ended.stderr.strip() else f"ended with {ended.returncode}"
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def only(name: str, images: int) -> None:
    CONTENDERS[name](*crowd(400))  # imports, and whatever is compiled on first use
    features, people = crowd(images)
    before = high_water()
    began = time.process_time()
    labels = CONTENDERS[name](features, people)
    seconds = time.process_time() - began
    found = agreement(labels, people)
    megabytes = (high_water() - before) // 1024
    print(
        json.dumps({"seconds": seconds, "megabytes": megabytes, "f_score": found.f_score, "clusters": found.clusters})
    )


def high_water() -> int:
    """Peak of the resident memory in kB, from Linux itself: `getrusage` starts from the peak of the parent process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[10_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cap", type=float, default=900.0, help="seconds that a contender may take")
    parser.add_argument("--floor-share", type=int, default=1, help="multiply only one in so many rows for the floor")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        only(options.only, options.images[0])
        return
    for images in options.images:
        show_floor(images, options.repeats, options.floor_share)
        show(images, options.cap)


if __name__ == "__main__":
    main()
