"""One federated round in personae, in the plainest PyTorch loop and in other frameworks, side by side.

    python benchmarks/rounds.py [--repeats 5] [--clients 40] [--images 100] [--networks small,mobilefacenet]

All train the same network on the same images with the same loss, optimiser, batch size and augmentation (a flip); each
is a process of its own, and a round of one follows a round of the other, while the others are stopped (but for those of
Flower, which would take that for a failure: compare it with `--only plain-2,personae-2,flower`). Start-up is everything
until the first round can begin; the first round is not counted. CPU time is that of all processes which a contender
started. Read the ratios, not the seconds.

Personae runs with `OMP_WAIT_POLICY=PASSIVE`, as its Makefile sets it, the others as in a shell where nothing is set:
with sleeping threads the plain loop of two threads would take 1.7 times as long.

pfl and Flower take part where they are installed: `pip install -e '.[bench]'`.
"""

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CONTENDERS = {
    "plain-2": "plain loop, 2 threads",
    "plain-2-planes": "  the same, batches as of a data loader",
    "plain-1": "plain loop, 1 thread",
    "personae-1": "personae, 1 worker",
    "personae-2": "personae, 2 workers",
    "personae-2-bf16": "personae, 2 workers, bf16",
    "personae-2-channels-first": "  without channels_last",
    "personae-2-slow-prelu": "  without the faster PReLU",
    "personae-2-freeing": "  without keeping freed memory",
    "personae-2-active": "  without passive waiting",
    "personae-threads": "  without processes (2 threads)",
    "pfl": "pfl",
    "flower": "Flower's simulation",
}
NEEDS = {"pfl": "pfl", "flower": "ray"}  # flwr alone has no simulation
MARK = "PERSONAE_BENCHMARK"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Process:
    """A contender, how long it took to start, and what its rounds took."""

    name: str
    command: list[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def start(self) -> None:
        environment = {**os.environ, MARK: self.mark, "RAY_DEDUP_LOGS": "0"}
        environment.pop("OMP_WAIT_POLICY", None)
        if self.name.startswith("personae") and not self.name.endswith("active"):
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        began = time.perf_counter()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self._expect("ready")
        self.startup = time.perf_counter() - began
        self.startup_cpu = self._cpu()
        self._signal(signal.SIGSTOP)

    def round(self, count: bool) -> None:
        self._signal(signal.SIGCONT)
        before, began = self._cpu(), time.perf_counter()
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self._expect("done")
        if count:
            self.seconds.append(time.perf_counter() - began)
            self.cpu.append(self._cpu() - before)
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        self._signal(signal.SIGCONT)
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        """All that is left of it: where another contender failed, this one is stopped and would stay in memory."""
        for place in self._processes():
            with suppress(OSError):
                os.kill(int(place.name), signal.SIGKILL)

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise SystemExit(f"{self.name} ended before it was {word}: run {' '.join(self.command)} by hand")

    def _cpu(self) -> float:
        """Seconds of all processes that carry this contender's mark, and of their children that are gone."""
        total = 0
        for place in self._processes():
            with suppress(OSError):  # it ended while we looked
                times = (place / "stat").read_text().rpartition(")")[2].split()[11:15]
                total += sum(map(int, times))
        return total / TICKS

    def _signal(self, number: signal.Signals) -> None:
        if self.name != "flower":
            for place in self._processes():
                with suppress(OSError):
                    os.kill(int(place.name), number)

    def _processes(self) -> Iterator[Path]:
        for place in Path("/proc").iterdir():
            with suppress(OSError):  # it ended while we looked, or is somebody else's
                if place.name.isdigit() and f"{MARK}={self.mark}".encode() in (place / "environ").read_bytes():
                    yield place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--networks", default="small,mobilefacenet")
    parser.add_argument("--only", help="contenders, with commas")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for network in options.networks.split(","):
            found[network] = compare(Path(folder), network, options)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1))


def compare(folder: Path, network: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    names = options.only.split(",") if options.only else list(CONTENDERS)
    script = str(Path(__file__).with_name("contender.py"))
    processes = []
    for name in names:
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            print(f"{CONTENDERS[name]}: not installed, left out")
            continue
        contender = name.removesuffix("-active")
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        arguments = [contender, network, str(options.clients), str(options.images), str(place)]
        processes.append(Process(name, [sys.executable, script, *arguments]))
    try:
        for process in processes:
            process.start()
        for repeat in range(options.repeats + 1):
            for process in processes:
                process.round(count=repeat > 0)
        for process in processes:
            process.end()
    finally:
        for process in processes:
            process.kill()
    return show(network, processes, options.clients * options.images)


def show(network: str, processes: list[Process], images: int) -> dict[str, dict[str, float]]:
    base = processes[0]
    print(f"\n{network}: {images} images per round; ratios to {CONTENDERS[base.name]} (time: more is faster)")
    print(f"{'':40}{'s':>8}{'spread':>8}{'images/s':>10}{'ratio':>7}{'CPU s':>8}{'ratio':>7}{'start s':>9}{'CPU s':>7}")
    found = {}
    for process in processes:
        seconds, cpu = statistics.median(process.seconds), statistics.median(process.cpu)
        found[process.name] = {
            "seconds": seconds,
            "slowest/fastest": max(process.seconds) / min(process.seconds),
            "images/s": images / seconds,
            "time ratio": statistics.median(base.seconds) / seconds,
            "cpu": cpu,
            "cpu ratio": statistics.median(base.cpu) / cpu,
            "startup": process.startup,
            "startup cpu": process.startup_cpu,
        }
        row = list(found[process.name].values())
        print(
            f"{CONTENDERS[process.name]:40}{row[0]:8.2f}{row[1]:8.2f}{row[2]:10.0f}{row[3]:7.2f}{row[4]:8.2f}"
            f"{row[5]:7.2f}{row[6]:9.1f}{row[7]:7.1f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
