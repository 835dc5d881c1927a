"""The personalized protocols at the papers' scale: `python benchmarks/personalized.py [clients]`, one thread.

40 clients of 100 people with 40 test images each: for a client, 78,000 genuine and 632 million impostor pairs (1:1),
and 160,000 probes in a gallery of 100 (1:N). Every client that is asked for is really computed; one is the default.
"""

import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F

from personae.evaluation.personalized import personal_identification, personal_pairs
from personae.evaluation.verification import tar_at_far

CLIENTS, PEOPLE, IMAGES, DIMENSIONS = 40, 100, 40, 512
NOISE = 1.6
FARS, FPIRS = (1e-6, 1e-5, 1e-4), (1e-3, 1e-2, 1e-1)


def main(clients: int) -> None:
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    people = F.normalize(torch.randn(CLIENTS * PEOPLE, DIMENSIONS, generator=random))
    labels = torch.arange(CLIENTS * PEOPLE).repeat_interleave(IMAGES)
    vectors = torch.randn(len(labels), DIMENSIONS, generator=random).mul_(NOISE / DIMENSIONS**0.5).add_(people[labels])
    print(f"vectors: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    verification, identification = [], []
    for client in range(clients):
        own = labels // PEOPLE == client
        theirs = torch.arange(client * PEOPLE, (client + 1) * PEOPLE)
        start = time.perf_counter()
        pairs = personal_pairs(vectors[own], labels[own], vectors[~own], labels[~own])
        rates = tar_at_far(pairs, FARS)
        middle = time.perf_counter()
        found = personal_identification(people[theirs], theirs, vectors, labels, FPIRS)
        verification.append(middle - start)
        identification.append(time.perf_counter() - middle)
    print(f"1:1, {pairs.impostor_pairs:,} impostor pairs: {statistics.median(verification):.1f} s a client, {rates}")
    print(f"1:N, {len(labels):,} probes: {statistics.median(identification):.1f} s a client, {found}")
    print(f"{clients} of {CLIENTS} clients: {sum(verification) + sum(identification):.0f} s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
