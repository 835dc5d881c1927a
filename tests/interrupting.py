"""Runs the command as a shell does, and interrupts it like somebody who does not wait."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

EXPERIMENT = """
name = "tiny"
network = { height = 32, width = 32, embedding = 8 }
partition = { clients = 3 }
evaluation = { folds = 2, pairs_per_fold = 10 }

[data]
private = { identities = 9, images = 6 }
heldout = { first = 9, identities = 8, images = 4 }

[[stages]]
name = "federate"
rounds = 4
algorithm = { name = "fedpe", training = { epochs = 1, lr = 0.01 } }
"""
# As in a shell's foreground: tests that run in its background inherit that interrupts are ignored. It says when it
# listens: before, there is only the start of Python.
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from personae import __main__ as command
listen = command.listen
command.listen = lambda: (listen(), print("up", flush=True))
command.main()
"""
SECONDS = 5 + 5  # that it is given, and for a machine that is busy


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    seconds: float  # from the first interrupt on


def start(arguments: Sequence[str], cache: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PERSONAE_CACHE": str(cache)},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def interrupt(arguments: Sequence[str], cache: Path, moment: Callable[[], bool], bursts: int = 6) -> Ended:
    """Send several interrupts to all of its processes, as a terminal does, once the moment has come."""
    process = start(arguments, cache)
    deadline = time.monotonic() + 120
    while not moment() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    began = time.monotonic()
    for _ in range(bursts):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.01)
    said = "".join(process.communicate(timeout=60))
    return Ended(process.returncode, said, time.monotonic() - began)


def require_orderly(ended: Ended) -> None:
    assert ended.code == 5, ended.said
    assert "Traceback" not in ended.said
    assert "KeyboardInterrupt" not in ended.said
    assert len([line for line in ended.said.splitlines() if line.startswith("personae: stopped")]) == 1
    assert ended.seconds < SECONDS
