"""Optimisations can be switched off one by one, and what they promise holds."""

import os
import platform
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from personae.algorithms.fedpe import FedPE
from personae.cli import app
from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.errors import ConfigError
from personae.files import settle, write_bytes
from personae.models import Network
from personae.runtime import host
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.inprocess import SameProcess, WorkerProcesses
from personae.runtime.memory import GIVING_BACK
from toys import Rehearsal, quickly, stage_of

NO_SHARING = Acceleration().without(["sharing"])


def test_each_can_be_switched_off():
    assert Acceleration().without(["graphs", "padding"]) == Acceleration(graphs=False, padding=False)
    with pytest.raises(
        ConfigError,
        match="--without magic: there are channels_last, prelu, folding, memory, sharing, resident, graphs, padding",
    ):
        Acceleration().without(["magic"])


def test_the_command_names_what_there_is(tmp_path: Path):
    path = tmp_path / "exp.toml"
    path.write_text("")
    found = CliRunner().invoke(app, ["run", str(path), "--without", "magic"])
    assert isinstance(found.exception, ConfigError)
    told = " ".join(CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "300"}).output.split())
    assert "(channels_last, prelu, folding, memory, sharing, resident, graphs, padding)" in told


def test_without_shared_memory_models_go_through_a_pipe(rehearsal: Rehearsal):
    for acceleration, numbers in ((Acceleration(), 3 * rehearsal.federation.backbone().layout.size), (NO_SHARING, 0)):
        transport = WorkerProcesses(replace(rehearsal.federation, acceleration=acceleration), 1)
        assert [sum(map(len, shelf.boxes)) for shelf in transport._shelves.values()] == [numbers]
        transport.close()


def test_channels_first_gives_the_same_up_to_rounding():
    network = Network(name="small", embedding=8, height=32, width=32)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = []
    for channels_last in (True, False):
        module = network.build(torch.Generator().manual_seed(1))
        backbone = Backbone(module, 8, acceleration=Acceleration(channels_last=channels_last))
        backbone.module.eval()
        batch = images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        weight = backbone.module.get_parameter("stem.0.weight")
        assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last
        found.append((backbone.module(batch), backbone.state().pack()[0]))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-4)
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in found[0][1])


FAULTS = """
import resource, sys, torch
from personae.runtime.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("this C library cannot be told")
for step in range(20):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(40 << 18)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_is_kept_is_not_cleared_again():
    if "glibc" not in platform.libc_ver()[0]:
        pytest.skip("only glibc can be told to keep it")

    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    pages = 10 * (40 << 20) // resource.getpagesize()
    assert faults("keep") < pages / 100
    assert faults("as it is") > pages / 100


KEPT = """
import resource, sys
from pathlib import Path
from personae.runtime.memory import give_back_freed_memory
if sys.argv[1] == "give back" and not give_back_freed_memory():
    sys.exit("this C library cannot be told")
lasting = []
for _ in range(3):
    messages = []
    for _ in range(20):
        messages.append(bytearray(8 << 20))
        lasting.append(bytearray(64 << 10))
    messages.clear()
print(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20)
"""


@pytest.mark.parametrize("environment", [{}, GIVING_BACK], ids=["by itself", "by its environment"])
def test_memory_of_messages_is_given_back(environment: dict[str, str]):
    if "glibc" not in platform.libc_ver()[0]:
        pytest.skip("only glibc can be told to give it back")

    def held(how: str, environment: dict[str, str]) -> int:
        words, around = [sys.executable, "-c", KEPT, how], {**os.environ, **environment}
        return int(subprocess.run(words, capture_output=True, text=True, check=True, env=around).stdout)

    with_the_messages = held("as it is", {})
    assert with_the_messages > held("as it is" if environment else "give back", environment) + 100


def test_clients_keep_memory_unless_it_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = []
    monkeypatch.setattr(host, "keep_freed_memory", lambda: told.append(True))
    federation = Rehearsal(tmp_path, (stage_of(FedPE()),)).federation
    SameProcess(replace(federation, acceleration=Acceleration(memory=False)))
    assert told == []
    SameProcess(federation)
    assert told == [True]


def test_a_rehearsal_leaves_no_trace():
    backbone = Backbone(Network(name="small", embedding=8, height=32, width=32).build(), 8)
    before = backbone.flat.clone()
    counters = [buffer.clone() for buffer in backbone.module.buffers() if not buffer.is_floating_point()]
    with backbone.rehearsal():
        backbone.module.train()(torch.randn(4, 3, 32, 32))
        backbone.weights.mul_(2)
        assert not torch.equal(backbone.flat, before)
    assert torch.equal(backbone.flat, before)
    after = [buffer for buffer in backbone.module.buffers() if not buffer.is_floating_point()]
    assert all(torch.equal(*pair) for pair in zip(counters, after, strict=True))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are flushed to disk, in order."""
    found: list[str] = []
    flush = os.fsync

    def noting(descriptor: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return found


def test_a_file_is_durable_at_once_or_when_settled(tmp_path: Path, synced: list[str]):
    write_bytes(tmp_path / "at once", b"1")
    assert len(synced) == 2
    synced.clear()
    write_bytes(tmp_path / "later", b"2", durable=False)
    assert synced == []
    assert (tmp_path / "later").read_bytes() == b"2"
    settle([tmp_path / "later", tmp_path / "never written"])
    assert synced == [str(tmp_path / "later"), str(tmp_path)]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_clients_keep_is_durable_before_the_checkpoint_that_builds_on_it(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch, workers: int
):
    run = Rehearsal(tmp_path, (stage_of(quickly(FedPE()), rounds=2),))
    save = Checkpoints.save
    unsafe: list[Path] = []

    def checked(self, stage, number, *rest):
        kept = list((tmp_path / "private").rglob(f"{number:06d}.safetensors"))
        assert len(kept) == 4
        unsafe.extend(path for path in kept if not {str(path), str(path.parent)} <= set(synced))
        save(self, stage, number, *rest)

    monkeypatch.setattr(Checkpoints, "save", checked)
    transport = SameProcess(run.federation) if workers == 1 else WorkerProcesses(run.federation, workers)
    try:
        run.run(transport)
    finally:
        transport.close()
    assert unsafe == []
