"""Rounds over a real SuperLink with TLS and keys, over loopback, beside the same rounds in one process.

    python benchmarks/network.py rounds [--clients 3 10 30 100] [--megabytes 1 4 100] [--rounds 7]
    python benchmarks/network.py kills                # from a kill to the next round in which nobody is missing
    python benchmarks/network.py vanishing            # 100 clients, a tenth of them killed in every round
    python benchmarks/network.py table                # what was measured so far, as the tables of the documentation

`personae serve` and `personae join` are processes of this machine, and all clients of a measurement share one process
(`join --each`) unless some of them are to be killed. What is measured is what the messages cost, not a network. Local
training is one step on four small images. Seconds of a round are the server's own (`timing.jsonl`); the first and the
last round are not counted. Memory is what processes hold by themselves (unique set size) when they hold the most. Where
others use the machine, too, seconds say little; seconds of its cores, of all processes of a measurement together, do.

"Transfer" is the time that the payload of a round takes through one plain TLS connection over loopback, from a process
that only writes to one that only reads. It was measured just before. Each measurement is a file in `--out`, and one
that is there is not taken again.
"""

import argparse
import json
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.deployment.certs import make_certificates
from personae.deployment.processes import free_port
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal
from personae.experiment.materials import Materials

PERSONAE = [sys.executable, "-c", "from personae.__main__ import main; main()"]
MARK = "PERSONAE_BENCHMARK"
SIZES = {1: (64, 32), 4: (2048, 32), 100: (5200, 112)}  # megabytes of a model -> its embedding, the side of an image
EXPERIMENT = """
name = "benchmark"
[network]
name = "small"
embedding = {embedding}
height = {side}
width = {side}
[data.private]
identities = {identities}
images = 6
[partition]
by = "equal"
clients = {clients}
[[stages]]
name = "round"
rounds = {rounds}
quorum = 0.5
[stages.algorithm]
name = "fedpe"
training = {{ batch_size = 4, iterations = 1 }}
"""


class Memory:
    """Looks once in a while at all processes that carry a mark; gives the most that they held together."""

    def __init__(self, *marks: str) -> None:
        self.most, self.now, self.work = (dict.fromkeys(marks, 0) for _ in range(3))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            now, work = dict.fromkeys(self.most, 0), dict.fromkeys(self.most, 0)
            for place in Path("/proc").glob("[0-9]*"):
                if (mark := _mark(place)) in now:
                    now[mark] += _unique(place)
                    work[mark] += _worked(place)
            self.now, self.work = now, work
            self.most = {mark: max(most, now[mark]) for mark, most in self.most.items()}


def _mark(place: Path) -> str:
    try:
        for entry in (place / "environ").read_bytes().split(b"\0"):
            if entry.startswith(f"{MARK}=".encode()):
                return entry.decode().partition("=")[2]
    except OSError:
        pass
    return ""


def _worked(place: Path) -> int:
    """Ticks of a core, mostly hundredths of a second, that a process has had."""
    try:
        return sum(map(int, (place / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    except OSError:
        return 0


def _unique(place: Path) -> int:
    try:
        lines = (place / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


@dataclass
class Lab:
    """An experiment with tiny work, dealt to clients that have keys."""

    folder: Path
    clients: int
    megabytes: int
    rounds: int
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        embedding, side = SIZES[self.megabytes]
        self.experiment.write_text(
            EXPERIMENT.format(
                embedding=embedding, side=side, identities=2 * self.clients, clients=self.clients, rounds=self.rounds
            )
        )
        materials = Materials(load_experiment(self.experiment), Execution(cache=self.folder / "cache"))
        self.names = [path.stem for path in deal(materials, self.folder / "dealt")]
        make_certificates(self.folder / "certs", (), self.names)

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.toml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def start(self, mark: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, MARK: mark, "PERSONAE_CACHE": str(self.folder / "cache")}
        with (self.folder / f"{mark}.log").open("ab") as log:
            started = subprocess.Popen(
                [*PERSONAE, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.processes.append(started)
        return started

    def serve(self, *options: str) -> subprocess.Popen[bytes]:
        words = ["serve", str(self.experiment), "--certs", str(self.folder / "certs" / "server")]
        words += ["--out", str(self.out), "--host", "127.0.0.1", "--port", str(self.port), *options]
        return self.start("server", *words)

    def join(self, names: Iterable[str], group: str = "all") -> subprocess.Popen[bytes]:
        """These clients in one process."""
        keys = self.folder / "groups" / group
        keys.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not (keys / name).exists():
                (keys / name).symlink_to(self.folder / "certs" / name)
        words = ["--certs", str(keys), "--data", str(self.folder / "dealt"), "--home", str(self.folder / "homes")]
        return self.start("clients", "join", "--each", "--accept", "all", "--server", f"127.0.0.1:{self.port}", *words)

    def run(self, server: subprocess.Popen[bytes], patience: float) -> None:
        """Until the server has ended, and well."""
        if server.wait(patience):
            raise SystemExit("\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log")))

    def seconds(self, out: Path | None = None) -> list[float]:
        return [entry["seconds"] for entry in self.records("timing", out)]

    def records(self, name: str, out: Path | None = None) -> list[dict[str, Any]]:
        path = (out or self.out) / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()


@contextmanager
def lab(clients: int, megabytes: int, rounds: int) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="network-") as folder:
        made = Lab(Path(folder), clients, megabytes, rounds)
        try:
            yield made
        finally:
            made.end()


def plain_tls(certs: Path, total: int = 400_000_000) -> float:
    """Bytes a second through one TLS connection over loopback, between two processes."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certs / "server" / "server.crt", certs / "server" / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        writer = os.fork()
        if writer == 0:
            connection, _ = listening.accept()
            with server.wrap_socket(connection, server_side=True) as channel:
                piece = bytes(5_000_000)
                for _ in range(total // len(piece)):
                    channel.sendall(piece)
            os._exit(0)
        client = ssl.create_default_context(cafile=str(certs / "ca.crt"))
        with (
            socket.create_connection(listening.getsockname()) as plain,
            client.wrap_socket(plain, server_hostname="localhost") as channel,
        ):
            began, left, buffer = time.perf_counter(), total, bytearray(1 << 20)
            while left:
                left -= channel.recv_into(buffer)
            seconds = time.perf_counter() - began
        os.waitpid(writer, 0)
    return total / seconds


def measure_rounds(clients: int, megabytes: int, rounds: int) -> dict[str, Any]:
    with lab(clients, megabytes, rounds) as here, Memory("server", "clients", "alone") as memory:
        speed = plain_tls(here.folder / "certs")
        alone = here.folder / "alone"
        words = ["run", str(here.experiment), "--out", str(alone), "--workers", "1"]
        cores_alone = cores_in_a_round(here, here.start("alone", *words), alone, memory)
        began = time.monotonic()
        server = here.serve("--deadline", "900")
        here.join(here.names)
        cores = cores_in_a_round(here, server, here.out, memory)
        payload = {"down": 0, "up": 0}
        for entry in here.records("ledger"):
            payload[entry["direction"]] += entry["bytes"]
        crossed = json.loads((here.out / "traffic.json").read_text()).values()
        trained = [entry["bytes"] for entry in here.records("ledger") if entry["round"] == 2]
        models = [(out / "models" / "round.safetensors").read_bytes() for out in (here.out, alone)]
        return {
            "network": here.seconds(),
            "one process": here.seconds(alone),
            "same bits": models[0] == models[1],
            "bytes of a round": sum(trained),
            "transfer": sum(trained) / speed,
            "payload": payload,
            "wire": {way: sum(each[way] for each in crossed) for way in payload},
            "turns": (here.out / "answered.bell").stat().st_size,
            "memory": memory.most,
            "seconds of cores in a round": cores,
            "seconds of cores in a round, one process": cores_alone["alone"],
            "whole run": time.monotonic() - began,
        }


def cores_in_a_round(here: Lab, run: subprocess.Popen[bytes], out: Path, memory: Memory) -> dict[str, float]:
    """Seconds that processes had of the machine's cores, by their marks; of the rounds but the first."""
    worked: list[dict[str, int]] = []
    while run.poll() is None:
        if len(here.seconds(out)) > len(worked):
            worked.append(memory.work)
        time.sleep(0.05)
    here.run(run, 0)
    ticks, counted = os.sysconf("SC_CLK_TCK"), len(worked) - 1
    return {mark: (worked[-1][mark] - worked[0][mark]) / ticks / counted for mark in worked[0]}


def measure_kills(clients: int, megabytes: int, rounds: int) -> dict[str, Any]:
    """In the middle of a round: a client, the SuperLink alone, and the whole server; each is started again at once."""
    with lab(clients, megabytes, rounds) as here:
        server, found = here.serve("--deadline", "300"), {}
        here.join(here.names[1:], "others")
        one = here.join(here.names[:1], "one")
        wait_for(lambda: len(here.seconds()) >= 3)
        kill(one.pid)
        found["a client"] = until_good(here, lambda: here.join(here.names[:1], "one"))
        (superlink,) = [pid for pid in descendants(server.pid) if b"flower-superlink" in command_of(pid)]
        os.kill(superlink, signal.SIGKILL)
        found["the SuperLink"] = until_good(here)
        kill(server.pid)
        found["the server"] = until_good(here, lambda: here.serve("--deadline", "300", "--resume"))
        return {"seconds": found}


def until_good(here: Lab, again: Callable[[], object] = lambda: None) -> float:
    """Seconds until a round is over that began after now and in which nobody is missing."""
    began, going_on = time.monotonic(), len(here.seconds()) + 1
    again()
    wait_for(lambda: any(not event["failed"] for event in training(here) if event["round"] > going_on))
    return time.monotonic() - began


def measure_vanishing(clients: int, megabytes: int, rounds: int) -> dict[str, Any]:
    """Ten processes with a tenth of the clients each; in every round one of them is killed, and started again."""
    with lab(clients, megabytes, rounds) as here, Memory("server") as memory:
        server = here.serve("--deadline", "120", "--wait", "600")
        groups = {str(tenth): here.names[tenth::10] for tenth in range(10)}
        there = {group: here.join(names, group) for group, names in groups.items()}
        began, done, held = time.monotonic(), 0, []
        while server.poll() is None:
            if len(here.seconds()) > done:
                done = len(here.seconds())
                held.append(memory.now["server"])
                group = str(done % 10)
                kill(there[group].pid)
                there[group] = here.join(groups[group], group)
            time.sleep(0.05)
        here.run(server, 0)
        return {
            "network": here.seconds(),
            "missing": [len(event["failed"]) for event in training(here)],
            "reasons": sorted({reason for event in training(here) for reason in event["failed"].values()}),
            "whole run": time.monotonic() - began,
            "memory": memory.most,
            "memory by round": held,
        }


def training(here: Lab) -> list[dict[str, Any]]:
    return [event for event in here.records("metrics") if event["event"] == "round"]


def wait_for(happened: Callable[[], bool], patience: float = 600.0) -> None:
    end = time.monotonic() + patience
    while not happened():
        if time.monotonic() > end:
            raise SystemExit("what was waited for did not happen")
        time.sleep(0.05)


def kill(pid: int) -> None:
    """Without a warning, with everything that it has started."""
    for each in [*descendants(pid), pid]:
        os.kill(each, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        parents.setdefault(parent, []).append(int(place.name))
    found = [*parents.get(pid, [])]
    for child in found:
        found += parents.get(child, [])
    return found


def command_of(pid: int) -> bytes:
    return (Path("/proc") / str(pid) / "cmdline").read_bytes()


# ------------------------------------------------------------------------------------------------------------ tables


def table_of_rounds(cells: dict[tuple[int, int], dict[str, Any]]) -> Iterator[str]:
    heads = ("clients", "model", "one process", "network", "overhead", "transfer", "target", "of cores", "more bytes")
    yield f"| {' | '.join(heads)} | memory: server | clients |"
    yield "|---" * 11 + "|"
    for (clients, megabytes), cell in sorted(cells.items(), key=lambda entry: (entry[0][1], entry[0][0])):
        network, alone = (median(cell[name]) for name in ("network", "one process"))
        target = 1 + 1.3 * cell["transfer"]
        met = "met" if network - alone <= target else "missed"
        surplus = sum(cell["wire"].values()) / sum(cell["payload"].values()) - 1
        cores = cell["seconds of cores in a round"]
        alone_on_cores = cell["seconds of cores in a round, one process"]
        work = f"{alone_on_cores:.2f} / {cores['server']:.2f} + {cores['clients']:.2f}"
        held = [f"{cell['memory'][name] / 2**20:,.0f} MiB" for name in ("server", "clients")]
        yield (
            f"| {clients} | {megabytes} MB | {alone:.2f} s | {network:.2f} s | {network - alone:.2f} s | "
            f"{cell['transfer']:.2f} s | {target:.2f} s: {met} | {work} s | "
            f"{100 * surplus:.1f}% | {held[0]} | {held[1]} |"
        )


def table_of_kills(cells: dict[tuple[int, int], dict[str, Any]]) -> Iterator[str]:
    yield "| clients | model | killed | next good round after |"
    yield "|---|---|---|---|"
    for (clients, megabytes), cell in sorted(cells.items()):
        for what, seconds in cell["seconds"].items():
            yield f"| {clients} | {megabytes} MB | {what} | {seconds:.1f} s |"


def table_of_vanishing(cells: dict[tuple[int, int], dict[str, Any]]) -> Iterator[str]:
    yield "| clients | model | rounds | missing in a round | seconds of a round | server, first half | second half |"
    yield "|---|---|---|---|---|---|---|"
    for (clients, megabytes), cell in sorted(cells.items()):
        missing, seconds, held = cell["missing"], cell["network"], cell["memory by round"]
        halves = [max(half) / 2**20 for half in (held[: len(held) // 2], held[len(held) // 2 :])]
        yield (
            f"| {clients} | {megabytes} MB | {len(seconds)} | {min(missing)} to {max(missing)}, "
            f"median {statistics.median(missing):g} | {statistics.median(seconds):.1f} s ({min(seconds):.1f} to "
            f"{max(seconds):.1f}) | {halves[0]:,.0f} MiB | {halves[1]:,.0f} MiB |"
        )


def median(seconds: list[float]) -> float:
    return statistics.median(seconds[1:-1])


Measure = Callable[[int, int, int], dict[str, Any]]
KINDS: dict[str, tuple[Measure, Callable[..., Iterator[str]], list[int], list[int], int]] = {
    "rounds": (measure_rounds, table_of_rounds, [3, 10, 30, 100], [1, 4, 100], 7),
    "kills": (measure_kills, table_of_kills, [10], [1], 200),
    "vanishing": (measure_vanishing, table_of_vanishing, [100], [1], 50),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*KINDS, "table"])
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--megabytes", type=int, nargs="+", choices=SIZES)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "results" / "network")
    options = parser.parse_args()
    if options.what == "table":
        for kind, (_, table, *_) in KINDS.items():
            cells = {}
            for path in options.out.glob(f"{kind}-*.json"):
                _, clients, megabytes = path.stem.split("-")
                cells[int(clients), int(megabytes)] = json.loads(path.read_text())
            print("\n".join(table(cells)), end="\n\n")
        return
    measure, _, clients, megabytes, rounds = KINDS[options.what]
    options.out.mkdir(parents=True, exist_ok=True)
    for size in options.megabytes or megabytes:
        for count in options.clients or clients:
            path = options.out / f"{options.what}-{count}-{size}.json"
            if path.exists():
                continue
            print(f"{options.what}, {count} clients, {size} MB", flush=True)
            found = measure(count, size, options.rounds or rounds)
            path.write_text(json.dumps({"cores": os.cpu_count(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
