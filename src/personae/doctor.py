"""Is this machine ready, and what will it do well?"""

import importlib.metadata
import os
import platform
import shutil
import time
from dataclasses import dataclass

import torch
from packaging.requirements import Requirement

from personae.core.threads import available_cores, torch_threads
from personae.data import default_cache
from personae.files import write_bytes
from personae.version import INSTALL

PACKAGES = (
    "personae",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "pydantic",
    "safetensors",
    "Pillow",
    "simplejpeg",
    "matplotlib",
)


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `good` is False where something should be done about it."""

    subject: str
    state: str
    good: bool
    advice: str = ""


def examine() -> list[Finding]:
    return [_python(), *_packages(), *_extras(), _cores(), _waiting(), _accelerator(), _cache(), _speed()]


def _python() -> Finding:
    return Finding("Python", platform.python_version(), True)


def _packages() -> list[Finding]:
    found = []
    for name in PACKAGES:
        try:
            found.append(Finding(name, importlib.metadata.version(name), True))
        except importlib.metadata.PackageNotFoundError:
            advice = INSTALL if name == "personae" else f"install {name}"
            found.append(Finding(name, "missing", False, advice))
    return found


def _extras() -> list[Finding]:
    """What can be installed besides, and what of it is."""
    try:
        about = importlib.metadata.metadata("personae")
    except importlib.metadata.PackageNotFoundError:
        return []  # which was said of personae itself
    needed = [Requirement(text) for text in about.get_all("Requires-Dist", [])]
    return [_extra(name, needed) for name in about.get_all("Provides-Extra", [])]


def _extra(extra: str, needed: list[Requirement]) -> Finding:
    states, complete = [], True
    for each in needed:
        if each.marker is None or not each.marker.evaluate({"extra": extra}):
            continue
        try:
            version = importlib.metadata.version(each.name)
            fits = each.specifier.contains(version, prereleases=True)
            states.append(f"{each.name} {version}" if fits else f"{each.name} {version}, not {each.specifier}")
        except importlib.metadata.PackageNotFoundError:
            fits = False
            states.append(f"no {each.name}")
        complete = complete and fits
    return Finding(f"extra {extra}", ", ".join(states), True, "" if complete else f"pip install 'personae[{extra}]'")


def _cores() -> Finding:
    return Finding("processor cores", str(available_cores()), True)


def _waiting() -> Finding:
    """Threads that spin while they wait take the cores from the other workers."""
    policy = os.environ.get("OMP_WAIT_POLICY", "unset")
    good = policy.upper() == "PASSIVE"
    return Finding("OMP_WAIT_POLICY", policy, good, "" if good else "set it to PASSIVE when several workers train")


def _accelerator() -> Finding:
    if not torch.cuda.is_available():
        return Finding("accelerator", "none: training runs on the processor", True)
    return Finding("accelerator", torch.cuda.get_device_name(), True)


def _cache() -> Finding:
    folder = default_cache()
    try:
        probe = folder / ".probe"
        write_bytes(probe, b"")
        probe.unlink()
    except OSError as error:
        return Finding("cache", f"{folder}: {error.strerror}", False, "set PERSONAE_CACHE to a folder you may write to")
    free = shutil.disk_usage(folder).free / 1e9
    return Finding("cache", f"{folder}, {free:.1f} GB free", free > 1, "" if free > 1 else "free some disk space")


def _speed() -> Finding:
    """What one thread reaches on the kind of convolution that local training spends its time in."""
    images = torch.rand(32, 64, 16, 16).to(memory_format=torch.channels_last)
    kernels = torch.rand(64, 64, 3, 3).to(memory_format=torch.channels_last)
    operations = 2 * 32 * 16 * 16 * 64 * 64 * 9
    best = float("inf")
    with torch.no_grad(), torch_threads(1):
        for _ in range(10):
            began = time.perf_counter()
            torch.conv2d(images, kernels, padding=1)
            best = min(best, time.perf_counter() - began)
    return Finding("convolution, one thread", f"{operations / best / 1e9:.0f} GFLOP/s", True)
