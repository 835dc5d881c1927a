"""Exact rates over all pairs of 10,000 vectors beside the plainest ways: `python benchmarks/evaluation.py [images]`.

Runs are interleaved, so that whatever else the machine does falls on all alike; medians are compared. One thread. The
floor is the float32 product of every unordered pair once, in the same tiles, with nothing done to the scores.
Scikit-learn gets the scores of the same pairs for nothing: its time is that of `roc_curve` alone.
"""

import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_curve
from torch import Tensor

from personae.evaluation.comparisons import Crossed
from personae.evaluation.crossing import COLUMNS, ROWS
from personae.evaluation.curves import sweep
from personae.evaluation.verification import all_pairs, tar_at_far

DIMENSIONS = 512
IDENTITIES = 1000
NOISE = 2.0  # some people are as far from themselves as from others
REPEATS = 3
RATES = {"TAR at 1e-6, 1e-4": (1e-6, 1e-4), "TAR at 1e-3, 1e-2, 1e-1": (1e-3, 1e-2, 1e-1)}


def faces(count: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % IDENTITIES
    people = F.normalize(torch.randn(IDENTITIES, DIMENSIONS, generator=random))
    noise = torch.randn(count, DIMENSIONS, generator=random) / DIMENSIONS**0.5
    return F.normalize(people[labels] + NOISE * noise), labels


def floor(vectors: Tensor) -> None:
    for top in range(0, len(vectors), ROWS):
        for left in range(top, len(vectors), COLUMNS):
            torch.mm(vectors[top : top + ROWS], vectors[left : left + COLUMNS].T)


def held(pairs: Crossed) -> tuple[np.ndarray, np.ndarray]:
    """Truth and scores of all pairs."""
    (span,) = pairs.spans()
    genuine, impostor = span.genuine.values, span.impostor.values
    scores = np.concatenate([genuine, impostor])
    truth = np.repeat([True, False], [len(genuine), len(impostor)])
    mixed = np.random.default_rng(0).permutation(len(scores))  # sorted scores would be a gift
    return truth[mixed], scores[mixed]


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak() -> float:
    """Megabytes, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(count: int) -> None:
    torch.set_num_threads(1)
    vectors, labels = faces(count)
    before = peak()
    for name, fars in RATES.items():
        print(f"{name}: {', '.join(f'{tar:.4f}' for tar in tar_at_far(all_pairs(vectors, labels), fars).values())}")
    print(f"peak memory: {before:.0f} MB with the vectors, {peak():.0f} MB after the rates", end="")
    sweep(all_pairs(vectors, labels))
    print(f", {peak():.0f} MB after the curves")
    truth, scores = held(all_pairs(vectors, labels))
    rivals: dict[str, Callable[[], object]] = {"float32 products alone": lambda: floor(vectors)}
    for name, fars in RATES.items():
        rivals[name] = lambda fars=fars: tar_at_far(all_pairs(vectors, labels), fars)
    rivals["ROC, EER, AUC, histogram"] = lambda: sweep(all_pairs(vectors, labels))
    rivals["scikit-learn's roc_curve"] = lambda: roc_curve(truth, scores)
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(REPEATS):
        for name, work in rivals.items():
            times[name].append(seconds(work))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ground, sklearn = medians["float32 products alone"], medians["scikit-learn's roc_curve"]
    print(f"{'':26} {'seconds':>8} {'x products':>11} {'sklearn / it':>13}")
    for name, taken in medians.items():
        print(f"{name:26} {taken:8.2f} {taken / ground:11.2f} {sklearn / taken:13.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
