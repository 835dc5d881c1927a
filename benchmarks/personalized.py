"""The personalized protocols at the papers' scale: `python benchmarks/personalized.py [clients] [--device cuda]`.

40 clients of 100 people with 40 test images each: for a client, 78,000 genuine and 632 million impostor pairs (1:1),
and 160,000 probes in a gallery of 100 (1:N). Every client that is asked for is really computed; one is the default.
One thread. Beside the seconds by the clock stand those of the processor, which say more on a machine that is shared.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.evaluation.personalized import personal_identification, personal_pairs
from personae.evaluation.spread import spread
from personae.evaluation.verification import rate_name, tar_at_far, tar_name

CLIENTS, PEOPLE, IMAGES, DIMENSIONS = 40, 100, 40, 512
NOISE = 1.6
FARS, FPIRS = (1e-6, 1e-5, 1e-4), (1e-3, 1e-2, 1e-1)


class Seconds(NamedTuple):
    clock: float
    processor: float


def timed(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    clock, processor = time.perf_counter(), time.process_time()
    found = work()  # ends with figures on the CPU, so that a GPU has finished too
    return Seconds(time.perf_counter() - clock, time.process_time() - processor), found


def peak() -> str:
    gpu = f", {torch.cuda.max_memory_allocated() / 2**20:.0f} MB of the GPU" if torch.cuda.is_available() else ""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB{gpu}"


def one_to_one(vectors: Tensor, labels: Tensor, own: Tensor) -> tuple[dict[float, float], tuple[int, int]]:
    pairs = personal_pairs(vectors[own], labels[own], vectors[~own], labels[~own])
    return tar_at_far(pairs, FARS), (pairs.genuine_pairs, pairs.impostor_pairs)


def main(clients: int, device: str) -> None:
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    people = F.normalize(torch.randn(CLIENTS * PEOPLE, DIMENSIONS, generator=random))
    labels = torch.arange(CLIENTS * PEOPLE).repeat_interleave(IMAGES)
    vectors = torch.randn(len(labels), DIMENSIONS, generator=random).mul_(NOISE / DIMENSIONS**0.5).add_(people[labels])
    people, vectors = people.to(device), vectors.to(device)
    print(f"vectors: {peak()}", flush=True)
    verification, identification, figures = [], [], {}
    for client in range(clients):
        own = labels // PEOPLE == client
        theirs = torch.arange(client * PEOPLE, (client + 1) * PEOPLE)
        seconds, (rates, counts) = timed(lambda own=own: one_to_one(vectors, labels, own))
        verification.append(seconds)
        seconds, found = timed(
            lambda theirs=theirs: personal_identification(people[theirs], theirs, vectors, labels, FPIRS)
        )
        identification.append(seconds)
        figures[str(client)] = {tar_name(far): rate for far, rate in rates.items()} | {
            rate_name("tpir", fpir): rate for fpir, rate in found.items()
        }
        print(f"client {client}: 1:1 {verification[-1].clock:.1f} s, 1:N {identification[-1].clock:.1f} s", flush=True)
    print(f"{clients} of {CLIENTS} clients, {counts[0]:,} genuine and {counts[1]:,} impostor pairs each, on {device}")
    for name, times in (
        (f"1:1, {counts[1]:,} impostors", verification),
        (f"1:N, {len(labels):,} probes", identification),
    ):
        clock, processor = (statistics.median(each[at] for each in times) for at in (0, 1))
        total = sum(each.clock for each in times)
        print(f"{name}: {clock:.1f} s a client ({processor:.1f} s of the processor), {total:.0f} s in all")
    for name, each in spread(figures).items():
        print(
            f"{name}: mean {each.mean:.4f}, deviation {each.deviation:.4f}, worst {each.worst:.4f}, gap {each.gap:.4f}"
        )
    print(f"peak memory: {peak()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", type=int, nargs="?", default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    main(options.clients, options.device)
