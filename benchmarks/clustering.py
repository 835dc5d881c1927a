"""C-FINCH beside finch-clust, DBSCAN and K-means; and its first neighbours beside the matrix product they rest on.

    python benchmarks/clustering.py [--images 10000 50000 200000] [--repeats 3] [--cap 900] [--memory 16] [--only NAME]

Features of 512 numbers, 20 images a person, in which 64 directions matter, so that people are not trivially apart. Each
contender runs in a process of its own with one thread, for at most `--cap` seconds of the processor and in at most
`--memory` GB: memory is the peak of that process less what it holds with the features loaded; the F-score is over all
pairs of images. K-means is told the true number of people. finch-clust is run as it comes: above 20,000 images it
approximates neighbours by pynndescent, which compiles itself in every process again, and gives up where that is not
installed; "again" is a second call. Its partition is the one with the best F-score, which nobody would know.

The floor is every product that the search for first neighbours cannot do without, once for each pair of blocks, values
thrown away: in float32, and in the format that the search screens in on this processor. Both are interleaved with the
search in one process, which is given the images of a person side by side, as folders have them, and shuffled, and is
held to float32, as on a processor that does not multiply bfloat16.

Seconds are those of the processor, since everything has one thread and other work on the machine shall not count; those
of the clock are beside them.
"""

import argparse
import itertools
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.parts.clustering import DBSCAN, CFinch, KMeans, agreement, first_neighbours, neighbours

WIDTH, DIRECTIONS, IMAGES, NOISE = 512, 64, 20, 0.8
WARM_UP = 400  # images


def crowd(images: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    people = torch.arange(images) // IMAGES
    centres = F.normalize(torch.randn(images // IMAGES + 1, DIRECTIONS, generator=source), dim=1)
    spread = F.normalize(torch.randn(images, DIRECTIONS, generator=source), dim=1)
    turned = torch.linalg.qr(torch.randn(WIDTH, DIRECTIONS, generator=source))[0].T
    return F.normalize((centres[people] + NOISE * spread) @ turned, dim=1), people


def finch_clust(features: Tensor, people: Tensor, exact: int = 20_000) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from finch import FINCH

        levels = FINCH(features.numpy(), verbose=False, random_state=0, ann_threshold=exact)[0]
    labels = [torch.from_numpy(level.astype("int64")) for level in levels.reshape(len(features), -1).T]
    return max(labels, key=lambda level: agreement(level, people).f_score)


CONTENDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "C-FINCH": lambda features, _: CFinch()(features, torch.Generator()),
    "finch-clust": finch_clust,
    "finch-clust again": lambda features, people: finch_clust(
        features, people, exact=20_000 if len(features) > WARM_UP else WARM_UP // 2
    ),
    "DBSCAN": lambda features, _: DBSCAN(radius=0.8)(features, torch.Generator()),
    "K-means": lambda features, people: KMeans(clusters=int(people.max()) + 1)(
        features, torch.Generator().manual_seed(0)
    ),
}


def floor(features: Tensor) -> None:
    product = features.new_empty(0)
    for rows, columns in itertools.combinations_with_replacement(features.split(neighbours.BLOCK), 2):
        torch.mm(rows, columns.T, out=product.resize_(len(rows), len(columns)))


def in_float32(features: Tensor) -> None:
    with patch.object(neighbours, "_formats", lambda _: [torch.float32]):
        first_neighbours(features)


def show_floor(images: int, repeats: int) -> None:
    features, _ = crowd(images)
    screened = features.to(neighbours._formats(features.device)[0])
    shuffled = features[torch.randperm(images, generator=torch.Generator().manual_seed(0))]
    work: dict[str, Callable[[], object]] = {
        "products in float32": lambda: floor(features),
        f"products in {str(screened.dtype).removeprefix('torch.')}": lambda: floor(screened),
        "first neighbours": lambda: first_neighbours(features),
        "first neighbours, shuffled": lambda: first_neighbours(shuffled),
        "the same in float32": lambda: in_float32(features),
        "the same, shuffled": lambda: in_float32(shuffled),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, call in work.items():
            began = time.process_time()
            call()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    plain, fast = list(medians.values())[:2]
    print(f"\n{f'{images} x {WIDTH}':30}{'s':>10}{'x float32':>12}{'x screened':>12}")
    for name, median in medians.items():
        print(f"{name:30}{median:10.2f}{median / plain:12.2f}{median / fast:12.2f}", flush=True)


def show(images: int, names: list[str], limits: argparse.Namespace) -> None:
    header = f"{'s':>10}{'x C-FINCH':>12}{'clock s':>10}{'peak MB':>10}{'F-score':>10}{'clusters':>10}"
    print(f"\n{f'{images} x {WIDTH}':20}{header}")
    ours = None
    for name in names:
        found = apart(name, images, limits)
        if isinstance(found, str):
            print(f"{name:20}  {found}", flush=True)
            continue
        ours = ours or found["seconds"]
        times = f"{found['seconds']:10.1f}{found['seconds'] / ours:12.2f}{found['clock']:10.1f}"
        print(
            f"{name:20}{times}{found['megabytes']:10}{100 * found['f_score']:10.2f}{found['clusters']:10}", flush=True
        )


def apart(name: str, images: int, limits: argparse.Namespace) -> dict[str, float] | str:
    bounds = ["--cap", str(limits.cap), "--memory", str(limits.memory)]
    command = [sys.executable, __file__, "--inside", name, "--images", str(images), *bounds]
    one_thread = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=one_thread)
    if ended.returncode == -signal.SIGXCPU:
        return f"over {limits.cap} s"
    if ended.returncode:
        return ended.stderr.strip().splitlines()[-1][:90] if ended.stderr.strip() else f"ended with {ended.returncode}"
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def inside(name: str, images: int, limits: argparse.Namespace) -> None:
    CONTENDERS[name](*crowd(WARM_UP))  # imports, and whatever is compiled on first use
    features, people = crowd(images)
    before = high_water()
    resource.setrlimit(resource.RLIMIT_AS, 2 * (limits.memory * 2**30,))
    used = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, 2 * (int(used) + limits.cap,))
    clock = time.perf_counter()
    labels = CONTENDERS[name](features, people)
    seconds, clock = time.process_time() - used, time.perf_counter() - clock
    found, megabytes = agreement(labels, people), (high_water() - before) // 1024
    figures = {"f_score": found.f_score, "clusters": found.clusters}
    print(json.dumps({"seconds": seconds, "clock": clock, "megabytes": megabytes, **figures}))


def high_water() -> int:
    """Peak of the resident memory in kB, from Linux itself: `getrusage` starts from the peak of the parent process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[10_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cap", type=int, default=900, help="seconds of the processor that a contender may take")
    parser.add_argument("--memory", type=int, default=16, help="GB of addresses that a contender may use")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS), help="some contenders")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.inside:
        inside(options.inside, options.images[0], options)
        return
    for images in options.images:
        if options.repeats:
            show_floor(images, options.repeats)
        if options.only:
            show(images, options.only, options)


if __name__ == "__main__":
    main()
