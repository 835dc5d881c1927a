"""A server and clients as processes of their own on this machine, and the end of them all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.deployment.certs import make_certificates
from personae.deployment.processes import free_port
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal
from personae.experiment.materials import Materials
from personae.experiment.run import conduct
from personae.runtime.federation import Federation
from personae.runtime.inprocess import SameProcess
from personae.runtime.seal import sealed, unsealed
from personae.runtime.transport import Answer, Failure, Request

PERSONAE = [sys.executable, "-c", "from personae.__main__ import main; main()"]
Places = Container[tuple[str, int]]  # clients and rounds
PATIENCE = 600.0  # seconds for anything to happen on a machine with other things to do

# Every Python process of a lab writes down whom it connects to and what it starts.
WATCH = """
import os, sys
def note(event, arguments):
    if event == "socket.connect":
        address = arguments[1]
    elif event == "subprocess.Popen":
        address = ("starts", os.path.basename(str(arguments[0])))
    else:
        return
    with open({log!r}, "a") as file:
        file.write(repr(address) + "\\n")
sys.addaudithook(note)
"""


@dataclass
class Processes:
    """Programs that were started in a folder, what they say, and the end of them all."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "watch").mkdir()
        (self.folder / "watch" / "sitecustomize.py").write_text(WATCH.format(log=str(self.folder / "calls.log")))

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        path = [str(self.folder / "watch"), *sys.path]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PERSONAE_CACHE": str(self.folder / "cache"),
            "LAB": str(self.folder),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, what: str, happened: Callable[[], object], patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not happened():
            assert time.monotonic() < end, f"{what} did not happen:\n{self.story()}"
            time.sleep(0.05)

    def done(self, patience: float = PATIENCE) -> None:
        """The server has ended, and well."""
        serve = self.processes["serve"]
        self.wait_for("the end of the run", lambda: serve.poll() is not None, patience)
        assert serve.returncode == 0, self.story()

    def kill(self, *names: str) -> None:
        """Without a warning, with everything that they have started."""
        for name in names:
            for pid in [*_descendants(self.processes[name].pid), self.processes[name].pid]:
                _kill(pid)
            self.processes[name].wait()

    def story(self) -> str:
        logs = sorted(self.folder.rglob("*.log"))
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def end(self) -> list[str]:
        """End everything; gives what was still there long after it should have gone."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        end = time.monotonic() + 60
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.2)
        for pid in left:
            _kill(pid)
        return list(left.values())

    def _left(self) -> dict[int, str]:
        """Processes of this lab, by a mark in their environment."""
        mark, found = f"LAB={self.folder}".encode(), {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found


@dataclass
class Lab(Processes):
    """An experiment with synthetic faces, dealt to clients that have keys."""

    text: str
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.homes = self.folder / "homes"
        super().__post_init__()
        self.experiment.write_text(self.text)
        loaded = load_experiment(self.experiment)
        self.clients = [
            path.stem for path in deal(Materials(loaded, Execution(cache=self.folder / "cache")), self.folder / "dealt")
        ]
        make_certificates(self.folder / "certs", (), self.clients)

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.toml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def alone(self, lost: Places = (), spoiled: Places = ()) -> Path:
        """The same experiment in this process, without the work, or the answers, of these clients in these rounds."""
        out = self.folder / "alone"
        conduct(
            load_experiment(self.experiment),
            out,
            Execution(cache=self.folder / "cache"),
            connect=lambda federation, *_: Losing(federation, lost, spoiled),
        )
        return out

    def serve(self, *options: str, program: Sequence[str] = PERSONAE) -> subprocess.Popen[bytes]:
        words = ["serve", str(self.experiment), "--certs", str(self.folder / "certs" / "server"), "--host", "127.0.0.1"]
        return self.start("serve", [*program, *words, "--port", str(self.port), "--out", str(self.out), *options])

    def join(self, client: str, program: Sequence[str] = PERSONAE) -> subprocess.Popen[bytes]:
        return self.start(client, [*program, *self.joining(client, client)])

    def join_all(self) -> subprocess.Popen[bytes]:
        """All clients in one process."""
        words = ["--certs", self.folder / "certs", "--data", self.folder / "dealt", "--home", self.homes]
        server = f"127.0.0.1:{self.port}"
        return self.start("all", [*PERSONAE, "join", "--each", "--accept", "all", "--server", server, *map(str, words)])

    def joining(self, client: str, name: str) -> list[str]:
        """To join with a client's faces, under the name of this or of another."""
        words = [
            "join",
            "--accept",
            "all",
            "--server",
            f"127.0.0.1:{self.port}",
            "--data",
            str(self.folder / "dealt" / f"{client}.zip"),
        ]
        return [*words, "--certs", str(self.folder / "certs" / name), "--home", str(self.home(name))]

    def home(self, client: str) -> Path:
        return self.homes / client

    def kill_superlink(self) -> None:
        """The SuperLink alone, under the server's hands."""
        for pid in _descendants(self.processes["serve"].pid):
            if b"flower-superlink" in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                _kill(pid)

    def records(self, name: str, out: Path | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ((out or self.out) / f"{name}.jsonl").read_text().splitlines()]

    def assert_same(self, alone: Path, *clients: str) -> None:
        """Models, what crossed, and what these clients keep: as in one process, to the bit."""
        assert _files(self.out / "models") == _files(alone / "models")
        assert _files(self.out / "models")
        assert self.records("ledger") == self.records("ledger", alone)
        for client in clients:
            (kept,) = (self.home(client) / "runs").iterdir()
            assert kept_states(kept / client) == kept_states(alone / "private" / client)


class Losing(SameProcess):
    """Some clients are out of reach in some rounds, or what they answer is."""

    def __init__(self, federation: Federation, lost: Places, spoiled: Places) -> None:
        super().__init__(federation)
        self._lost, self._spoiled = lost, spoiled

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        for request in requests:
            place = (request.client.name, request.round)
            answers: list[Answer | Failure] = []
            if request.task != "train" or place not in self._lost:
                answers = list(super().exchange([request]))
            if request.task == "train" and (place in self._lost or place in self._spoiled):
                answers = [Failure(request.client, "it is out of reach")]
            yield from answers


@contextmanager
def lab(folder: Path, text: str) -> Iterator[Lab]:
    made = Lab(folder, text)
    try:
        yield made
    finally:
        left = made.end()
    assert not left, left


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kept_states(folder: Path) -> dict[str, bytes]:
    """What a client keeps, to the bit, but for the name of the run that it is of."""
    states = {path: unsealed(path.read_bytes()) for path in folder.rglob("*.safetensors")}
    return {str(path.relative_to(folder)): sealed(packet, of | {"run": ""}) for path, (packet, of) in states.items()}


def _descendants(pid: int) -> list[int]:
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


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
