"""A client's program for one request runs what is installed, whatever app the server sends."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp as runtime

from personae.runtime import relay
from personae.runtime.flower import message_to, unwrapped

STAND_INS = ("install_from_fab", "install_app_dependencies", "get_project_dir", "get_load_client_app_fn")


class Quiet:
    """Stands for a connection and whatever else talks to the SuperNode."""

    is_running = False

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...

    @classmethod
    def from_server_address(cls, **_: Any) -> "Quiet":
        return cls()


@pytest.fixture
def bomb(tmp_path: Path) -> bytes:
    """An app as a server may send it, which leaves a mark where it is loaded."""
    project = (
        '[project]\nname = "personae-run"\nversion = "1.0.0"\nlicense = "MIT"\n'
        '[tool.flwr.app]\npublisher = "personae"\n'
        '[tool.flwr.app.components]\nserverapp = "bomb:app"\nclientapp = "bomb:app"\n'
    )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("pyproject.toml", project)
        file.writestr("bomb.py", f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n")
    return content.getvalue()


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, app: bytes) -> list[Any]:
    """The program, with a request for it and this app; gives what it sends."""
    sent: list[Any] = []
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    context = Context(1, 1, {"desk": "here"}, RecordDict(), {"job": "work"})
    task = SimpleNamespace(fab_id="personae/personae-run", fab_version="1.0.0", run_id=1)
    fab = SimpleNamespace(content=app, hash_str="0" * 64)
    request = message_to(1, b"a request", 60)
    monkeypatch.setattr(runtime, "pull_task_input", lambda *_: (request, context, task, fab))
    monkeypatch.setattr(runtime, "push_message", lambda _, reply, __: sent.append(reply))
    for name in ("RuntimeHttpClient", "HeartbeatSender"):
        monkeypatch.setattr(runtime, name, Quiet)
    for name in ("register_signal_handlers", "event", "push_task_output"):
        monkeypatch.setattr(runtime, name, lambda *_, **__: None)
    monkeypatch.setattr(runtime, "flwr_exit", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp", "--token", "t", "--insecure", "--runtime-api-address", "a:1"])
    for name in STAND_INS:
        monkeypatch.setattr(runtime, name, getattr(runtime, name))  # to be put back after the test
    monkeypatch.setattr(relay, "asked", lambda *parts: b"|".join([parts[0].encode(), *parts[1:]]))
    relay.main()
    return sent


def test_the_app_of_the_server_is_neither_unpacked_nor_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: bytes
) -> None:
    (reply,) = run(monkeypatch, tmp_path, bomb)
    assert unwrapped(reply.content) == b"here|work|a request"
    assert not (tmp_path / "mark").exists()
    assert not list(tmp_path.rglob("*.py"))


@pytest.mark.parametrize("name", STAND_INS)
def test_another_version_of_flower_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: bytes, name: str
) -> None:
    real = {each: getattr(runtime, each) for each in STAND_INS}
    with monkeypatch.context() as patch:
        patch.delattr(runtime, name)
        with pytest.raises(SystemExit, match=f"this version of Flower has no {name}"):
            relay.main()
    for each, function in real.items():
        setattr(runtime, each, function)
    assert not (tmp_path / "mark").exists()


def test_every_program_that_a_supernode_starts_is_ours(tmp_path: Path) -> None:
    relay.write_programs(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    for name in set(TASK_TYPE_TO_COMMAND.values()) - {"flwr-clientapp"}:
        ended = subprocess.run([tmp_path / name], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (1, "a client of personae runs no program of this kind\n")
    assert "personae.runtime.relay" in (tmp_path / "flwr-clientapp").read_text()
