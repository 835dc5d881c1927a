"""Exact rates and curves over all pairs of 10,000 vectors beside the plainest ways, and searches among a million
distractors: `python benchmarks/evaluation.py [--only rates curves distractors] [--device cuda]`.

Runs are interleaved, so that whatever else the machine does falls on all alike; medians are compared, of seconds by
the clock and of the processor, which say more on a machine that is shared. One thread. The floor is the float32 product
of every unordered pair once, in the same tiles, with nothing done to the scores. Scikit-learn gets the scores of the
same pairs for nothing: its time is that of `roc_curve` alone. `personalized.py` has the papers' protocols.
"""

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from personae.core.precision import plain_float32
from personae.evaluation.comparisons import Crossed
from personae.evaluation.crossing import COLUMNS, ON_GPU, ROWS
from personae.evaluation.curves import sweep
from personae.evaluation.distractors import BLOCK, among_distractors
from personae.evaluation.verification import all_pairs, tar_at_far

DIMENSIONS = 512
IDENTITIES = 1000
NOISE = 2.0  # some people are as far from themselves as from others
REPEATS = 5
PARTS = ("rates", "curves", "distractors")
PROBES, PROBE_PEOPLE = 3530, 80  # as many as MegaFace looks for
RATES = {
    "TAR at 1e-6, 1e-4": (1e-6, 1e-4),
    "TAR at 1e-3, 1e-2, 1e-1": (1e-3, 1e-2, 1e-1),
    "TAR at 1e-6 to 1e-1, six": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
}


def faces(count: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % IDENTITIES
    people = F.normalize(torch.randn(IDENTITIES, DIMENSIONS, generator=random))
    noise = torch.randn(count, DIMENSIONS, generator=random) / DIMENSIONS**0.5
    return F.normalize(people[labels] + NOISE * noise), labels


def floor(vectors: Tensor) -> None:
    taller, wider = (1, 1) if vectors.device.type == "cpu" else ON_GPU
    rows, columns = ROWS * taller, COLUMNS * wider
    with plain_float32():
        for top in range(0, len(vectors), rows):
            for left in range(top, len(vectors), columns):
                torch.mm(vectors[top : top + rows], vectors[left : left + columns].T)


def held(pairs: Crossed) -> tuple[np.ndarray, np.ndarray]:
    """Truth and scores of all pairs."""
    (span,) = pairs.spans()
    genuine, impostor = span.genuine.values, span.impostor.values
    scores = np.concatenate([genuine, impostor])
    truth = np.repeat([True, False], [len(genuine), len(impostor)])
    mixed = np.random.default_rng(0).permutation(len(scores))  # sorted scores would be a gift
    return truth[mixed], scores[mixed]


def seconds(work: Callable[[], object], device: str) -> tuple[float, float]:
    """By the clock, and of the processor."""
    gc.collect()
    clock, processor = time.perf_counter(), time.process_time()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - clock, time.process_time() - processor


def peak() -> str:
    """Of memory, so far."""
    gpu = f" and {torch.cuda.max_memory_allocated() / 2**20:.0f} MB of the GPU" if torch.cuda.is_available() else ""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB{gpu}"


say = partial(print, flush=True)  # a line is there when it is known, even if the rest is cut off


def rates_and_curves(parts: Sequence[str], count: int, device: str) -> None:
    vectors, labels = faces(count)
    vectors = vectors.to(device)
    say(f"{count:,} vectors: {peak()}")
    rivals: dict[str, Callable[[], object]] = {"float32 products alone": lambda: floor(vectors)}
    if "rates" in parts:
        for name, fars in RATES.items():
            rivals[name] = lambda fars=fars: tar_at_far(all_pairs(vectors, labels), fars)
            say(f"{name}: {', '.join(f'{tar:.4f}' for tar in rivals[name]().values())}; {peak()}")
    if "curves" in parts:
        rivals["ROC, EER, AUC, histogram"] = lambda: sweep(all_pairs(vectors, labels))
        found = rivals["ROC, EER, AUC, histogram"]()
        say(f"equal error rate {found.eer:.4f}, area {found.auc:.6f}; {peak()}")
    from sklearn.metrics import roc_curve  # the search among distractors does without

    truth, scores = held(all_pairs(vectors, labels))
    rivals["scikit-learn's roc_curve"] = lambda: roc_curve(truth, scores)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
    for turn in range(REPEATS):
        for name, work in rivals.items():
            times[name].append(seconds(work, device))
        say(f"turn {turn + 1}: {', '.join(f'{taken[-1][0]:.3f}' for taken in times.values())} s")
    for at, kind in enumerate(("by the clock", "of the processor")):
        medians = {name: statistics.median(taken[at] for taken in all_) for name, all_ in times.items()}
        ground, sklearn = medians["float32 products alone"], medians["scikit-learn's roc_curve"]
        say(f"{kind:26} {'seconds':>8} {'x products':>11} {'sklearn / it':>13}")
        for name, taken in medians.items():
            say(f"{name:26} {taken:8.3f} {taken / ground:11.2f} {sklearn / taken:13.1f}")


def search_among(count: int, device: str) -> None:
    # Drawn where they are compared: a GPU makes a million in no time, and need not be sent them.
    random = torch.Generator(device).manual_seed(1)
    labels = torch.arange(PROBES) % PROBE_PEOPLE
    people = F.normalize(torch.randn(PROBE_PEOPLE, DIMENSIONS, generator=random, device=device))
    noise = torch.randn(PROBES, DIMENSIONS, generator=random, device=device) / DIMENSIONS**0.5
    probes = people[labels.to(device)] + NOISE * noise
    strangers = torch.randn(count, DIMENSIONS, generator=random, device=device)
    among_distractors(probes, labels, strangers[:BLOCK])  # the first time has libraries to load
    say(f"{count:,} distractors: {peak()} with their vectors")
    found: list[object] = []
    clock, processor = seconds(
        lambda: found.append(among_distractors(probes, labels, strangers, ranks=(1, 10))), device
    )
    say(f"{PROBES * count:,} comparisons: {clock:.1f} s by the clock, {processor:.1f} of the processor; {peak()}")
    say(f"{found[0]}")
    few = F.normalize(strangers[: 16 * BLOCK])
    rows = F.normalize(probes)
    bare = min(seconds(lambda: products_alone(rows, few), device) for _ in range(REPEATS))
    ratios = (taken / (base * count / len(few)) for taken, base in zip((clock, processor), bare, strict=True))
    say("times the float32 products alone: {:.2f} by the clock, {:.2f} of the processor".format(*ratios))


def products_alone(rows: Tensor, columns: Tensor) -> None:
    with plain_float32():
        for start in range(0, len(columns), BLOCK):
            torch.mm(rows, columns[start : start + BLOCK].T)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some of the parts")
    parser.add_argument("--images", type=int, default=10_000, help="of rates and curves")
    parser.add_argument("--distractors", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "distractors" in options.only:
        search_among(options.distractors, options.device)
    if {"rates", "curves"} & set(options.only):
        rates_and_curves(options.only, options.images, options.device)
