"""A server and clients as processes of their own on this machine, and the end of them all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.deployment.certs import make_certificates
from personae.deployment.faces import deal
from personae.deployment.processes import free_port
from personae.experiment.config import load_experiment
from personae.experiment.materials import Materials
from personae.experiment.run import conduct

PERSONAE = [sys.executable, "-c", "from personae.cli import main; main()"]
PATIENCE = 240.0  # seconds for anything to happen on a machine with other things to do

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
class Lab:
    """An experiment with synthetic faces, dealt to clients that have keys."""

    folder: Path
    text: str
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.experiment.write_text(self.text)
        (self.folder / "watch").mkdir()
        (self.folder / "watch" / "sitecustomize.py").write_text(WATCH.format(log=str(self.folder / "calls.log")))
        loaded = load_experiment(self.experiment)
        self.clients = [
            path.stem for path in deal(Materials(loaded, cache=self.folder / "cache"), self.folder / "dealt")
        ]
        make_certificates(self.folder / "certs", (), self.clients)

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.toml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def alone(self, name: str = "alone") -> Path:
        """The same experiment in this process."""
        conduct(load_experiment(self.experiment), self.folder / name, cache=self.folder / "cache")
        return self.folder / name

    def serve(self, *options: str) -> subprocess.Popen[bytes]:
        words = ["serve", str(self.experiment), "--certs", str(self.folder / "certs" / "server"), "--host", "127.0.0.1"]
        return self.start("serve", [*PERSONAE, *words, "--port", str(self.port), "--out", str(self.out), *options])

    def join(self, client: str, *, program: Sequence[str] = PERSONAE, certs: str = "") -> subprocess.Popen[bytes]:
        words = ["join", "--server", f"127.0.0.1:{self.port}", "--data", str(self.folder / "dealt" / f"{client}.zip")]
        words += ["--certs", str(self.folder / "certs" / (certs or client)), "--home", str(self.home(client))]
        return self.start(client, [*program, *words])

    def home(self, client: str) -> Path:
        return self.folder / "homes" / client

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

    def await_(self, what: str, happened: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, f"{what} did not happen:\n{self.story()}"
            time.sleep(0.05)

    def done(self) -> None:
        """The server has ended, and well."""
        serve = self.processes["serve"]
        self.await_("the end of the run", lambda: serve.poll() is not None)
        assert serve.returncode == 0, self.story()

    def kill(self, *names: str) -> None:
        """Without a warning, with everything that they have started."""
        for name in names:
            for pid in [self.processes[name].pid, *_descendants(self.processes[name].pid)]:
                _kill(pid)
            self.processes[name].wait()

    def story(self) -> str:
        logs = [*sorted(self.folder.glob("*.log")), self.out / "flower.log", *self.folder.glob("homes/*/supernode.log")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in logs if path.exists())

    def model(self, out: Path | None = None, stage: str = "federate") -> bytes:
        return ((out or self.out) / "models" / f"{stage}.safetensors").read_bytes()

    def records(self, name: str, out: Path | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ((out or self.out) / f"{name}.jsonl").read_text().splitlines()]

    def private(self, client: str, alone: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """What a client keeps, here and in a run of one process."""
        (run,) = (self.home(client) / "runs").iterdir()
        return _files(run / client), _files(alone / "private" / client)

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
