"""Flower's own programs as children: found, started quietly, and ended with us."""

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import IO

from personae.errors import ConfigError
from personae.runtime.memory import GIVING_BACK

# Nothing is reported, looked up or installed by anybody but us.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # a second by default, which every start would wait for
GRACE = 10.0  # seconds that a child has to end by itself


def environment(home: Path) -> dict[str, str]:
    """For a child of Flower's: its files in `home`, its programs first, no calls home, and no memory kept."""
    path = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **GIVING_BACK,
        **os.environ,
        **QUIET,
        **POLL,
        "FLWR_HOME": str(home.absolute()),
        "PATH": os.pathsep.join(path),
    }


def program(name: str) -> str:
    """The full path of one of Flower's programs."""
    require_flower()
    found = shutil.which(name, path=environment(Path())["PATH"])
    if found is None:
        raise ConfigError(f"{name}: this program of Flower's is not there; pip install 'personae[flower]'")
    return found


def require_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("Flower is not installed here; pip install 'personae[flower]'")


def start(command: list[str], home: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A child in a group of its own, that is told to end when this process ends, however it does."""
    return subprocess.Popen(
        command,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call into the kernel, nothing that could wait for a lock
    )


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a child and its group: first by asking."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_leftovers(home: Path) -> None:
    """End whatever was started with this home and has outlived it, where the system says so (Linux does).

    Flower's programs start others in sessions of their own, which try for minutes to reach a parent that was killed.
    """
    mark = f"FLWR_HOME={home.absolute()}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked, or is somebody else's
            if mark in (place / "environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
