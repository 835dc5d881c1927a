"""A round against the number of clients: time for each participant, and memory.

    python benchmarks/growth.py [--clients 10,100,1000,10000]

Every client has one identity and takes one step of 8 images with the small network; from 10,000 on a tenth of them
takes part in a round. FedPE keeps a row with each client, on disk; FedFace sends it, and its server keeps all. Each
figure comes from a process of its own: time is the second round's, and memory what the rounds add to the peak.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from crowd import NETWORKS, Crowd, Rounds, random_pixels, training
from personae import FedFace, FedPE
from personae.parts.margins import Margin
from personae.selection import Share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="10,100,1000,10000")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], int(options.one[1]))
        return
    print(f"{'':10}{'clients':>8}{'asked':>8}{'s a round':>11}{'ms each':>9}{'MB added':>10}")
    for algorithm in ("fedpe", "fedface"):
        for clients in options.clients.split(","):
            command = [sys.executable, __file__, "--one", algorithm, clients]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            asked, seconds = found["asked"], found["seconds"]
            print(
                f"{algorithm:10}{clients:>8}{asked:8}{seconds:11.2f}{1000 * seconds / asked:9.2f}{found['mb']:10.0f}",
                flush=True,
            )


def one(algorithm: str, clients: int) -> None:
    torch.set_num_threads(1)
    share = 0.1 if clients >= 10_000 else 1.0
    options = training(8, epochs=None, iterations=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crowd = Crowd(random_pixels(folder, 64, count=256), clients, 8, identities=(1,))
        warm_up = Rounds(folder / "warm", Crowd(crowd.pixels, 4, 8, identities=(1,)), NETWORKS["small"], options)
        warm_up.round()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        method = FedFace(training=options) if algorithm == "fedface" else FedPE(training=options, margin=Margin())
        rounds = Rounds(
            folder / "run",
            crowd,
            NETWORKS["small"],
            options,
            selection=Share(share=share),
            algorithm=method,
        )
        rounds.round()
        began = time.perf_counter()
        rounds.round()
        seconds = time.perf_counter() - began
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"asked": max(1, round(share * clients)), "seconds": seconds, "mb": added}))


if __name__ == "__main__":
    main()
