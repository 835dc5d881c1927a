"""Federated rounds over a network, in one process, and in Flower's own simulation engine, on the same work.

    python benchmarks/flower.py [--network small] [--clients 3] [--images 200] [--rounds 6]

Clients have the same noise for faces everywhere and train the same network for one epoch. "over a network" is
`personae serve` and `personae join` as processes of this machine, with TLS and keys, over loopback: what is measured is
what Flower's processes and the bytes cost, not a network. The first round is not counted. Memory is the sum of what all
processes of a contender hold by themselves (unique set size) when they hold the most.

Flower's simulation takes part where it is installed: `pip install -e '.[bench]'`.
"""

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from crowd import NETWORKS, Crowd, random_pixels
from personae.deployment.certs import make_certificates
from personae.deployment.processes import free_port

PERSONAE = [sys.executable, "-c", "from personae.__main__ import main; main()"]
MARK = "PERSONAE_BENCHMARK"
EXPERIMENT = """
name = "benchmark"
[network]
name = "{name}"
embedding = {embedding}
height = {side}
width = {side}
[data.private]
identities = 1
[partition]
clients = {clients}
[[stages]]
name = "round"
rounds = {rounds}
[stages.algorithm]
name = "fedpe"
head_init = "random"
margin = {{ kind = "cosface", scale = 30.0, margin = 0.4 }}
training = {{ batch_size = 32, epochs = 1, augmentation = {{ flip = true, shift = 0, colour = 0.0 }} }}
"""


class Memory:
    """Looks once in a while at all processes that carry a mark."""

    def __init__(self, mark: str) -> None:
        self._mark, self._over = f"{MARK}={mark}".encode(), threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def processes(self) -> list[Path]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (place / "environ").read_bytes().split(b"\0"):
                    found.append(place)
            except OSError:
                continue
        return found

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.most = max(self.most, sum(map(_unique, self.processes())))


def _unique(place: Path) -> int:
    try:
        lines = (place / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def alone(name: str, folder: Path, options: argparse.Namespace, mark: str) -> list[float]:
    """A contender of `rounds.py`, without company."""
    words = [name, options.network, str(options.clients), str(options.images), str(folder)]
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("contender.py")), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, MARK: mark, "OMP_WAIT_POLICY": "PASSIVE"},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    seconds = []
    assert process.stdout.readline() == "ready\n", f"{name} did not start"
    for _ in range(options.rounds):
        began = time.perf_counter()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n", f"{name} ended"
        seconds.append(time.perf_counter() - began)
    process.stdin.close()
    process.wait()
    return seconds


def networked(folder: Path, options: argparse.Namespace, mark: str) -> list[float]:
    """`personae serve`, and a `personae join` for each client."""
    plan = NETWORKS[options.network]
    crowd = Crowd(random_pixels(folder, plan.height), options.clients, options.images)
    place, port = folder / "network", free_port()
    place.mkdir()
    for name in crowd.clients:
        pack(crowd, name, place / f"{name}.zip")
    make_certificates(place / "certs", (), crowd.clients)
    text = EXPERIMENT.format(
        name=plan.name, embedding=plan.embedding, side=plan.height, clients=options.clients, rounds=options.rounds
    )
    (place / "experiment.toml").write_text(text)
    words = [str(place / "experiment.toml"), "--certs", str(place / "certs" / "server"), "--out", str(place / "out")]
    commands = [["serve", *words, "--host", "127.0.0.1", "--port", str(port)]]
    for name in crowd.clients:
        words = ["--server", f"127.0.0.1:{port}", "--data", str(place / f"{name}.zip")]
        commands.append(
            ["join", "--accept", "all", *words, "--certs", str(place / "certs" / name), "--home", str(place / name)]
        )
    environment = {**os.environ, MARK: mark, "PERSONAE_CACHE": str(place / "cache"), "OMP_WAIT_POLICY": "PASSIVE"}
    with (place / "log").open("wb") as log:
        started = [subprocess.Popen([*PERSONAE, *each], stdout=log, stderr=log, env=environment) for each in commands]
    try:
        if started[0].wait(3600):
            raise SystemExit((place / "log").read_text()[-2000:])
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait()
    return [json.loads(line)["seconds"] for line in (place / "out" / "timing.jsonl").read_text().splitlines()]


def pack(crowd: Crowd, client: str, path: Path) -> None:
    """A client's noise as files; the last image of each person is there again, to evaluate on."""
    faces = crowd.of(client).train
    rows, labels = list(range(len(faces))), ["path,identity,split"]
    with zipfile.ZipFile(path, "w") as archive:
        for number, row in enumerate([*rows, *rows[-faces.classes :]]):
            image = io.BytesIO()
            Image.fromarray(faces.pixels.take(faces.stored[np.array([row])])[0]).save(image, "PNG", compress_level=0)
            archive.writestr(f"images/{number}.png", image.getvalue())
            labels.append(f"{number}.png,{int(faces.labels[row])},{'train' if number < len(rows) else 'test'}")
        archive.writestr("labels.csv", "\n".join(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="small", choices=NETWORKS)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    contenders: dict[str, tuple[str, Callable[[Path, argparse.Namespace, str], list[float]]]] = {
        "one": ("personae, one process", lambda *how: alone("personae-1", *how)),
        "two": ("personae, two workers", lambda *how: alone("personae-2", *how)),
        "network": ("personae over a network", networked),
    }
    if find_spec("ray") is not None:
        contenders["flower"] = ("Flower's simulation", lambda *how: alone("flower", *how))
    print(
        f"{options.clients} clients of {options.images} images, {options.network}; {options.rounds - 1} rounds counted"
    )
    base = 0.0
    for mark, (title, measure) in contenders.items():
        with tempfile.TemporaryDirectory(prefix="flower-") as folder, Memory(f"{mark}-{os.getpid()}") as memory:
            seconds = measure(Path(folder), options, f"{mark}-{os.getpid()}")
        median = statistics.median(seconds[1:])
        base = base or median
        spread = f"{min(seconds[1:]):.2f} to {max(seconds[1:]):.2f}"
        print(f"{title:26} {median:7.2f} s a round ({spread}), {median / base:5.1f} x; {memory.most / 2**20:7,.0f} MiB")


if __name__ == "__main__":
    main()
