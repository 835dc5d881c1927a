"""Write requirements.lock and requirements-torch.lock: what production needs, with the digests that PyPI has.

`python tools/lock.py`, in the environment of development with all of EXTRAS, on Linux, where PyPI can be reached.
Versions are those of constraints.txt. PyTorch has a file of its own, with what PyPI's builds of it take besides: builds
from other indices have other digests.
"""

import hashlib
import io
import re
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Sequence
from email import message_from_bytes
from functools import cache
from importlib.metadata import requires
from pathlib import Path
from urllib.error import HTTPError

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
LOCK, TORCH_LOCK = ROOT / "requirements.lock", ROOT / "requirements-torch.lock"
EXTRAS = ("align", "flower", "heic", "onnx", "parquet", "privacy")
BUILD = "setuptools"  # what builds the package itself
_OF_TORCH = re.compile(r"torch|triton|(cuda|nvidia)-.*")
_FILE = re.compile(r'href="([^"]*/([^"/#]+))#sha256=([0-9a-f]{64})"')


def of_torch(package: str) -> bool:
    """Whether it is PyTorch, or only its builds for GPUs take it."""
    return _OF_TORCH.fullmatch(package) is not None


def needed(
    asked: Callable[[str], Iterable[str]],
    package: str = "personae",
    extras: Sequence[str] = EXTRAS,
    known: set[str] | None = None,
) -> set[str]:
    """The packages that an installation takes, all the way down."""
    known = {BUILD} if known is None else known
    for line in asked(package):
        requirement = Requirement(line)
        name, its_extras = canonicalize_name(requirement.name), tuple(requirement.extras)
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": each}) for each in ("", *extras)
        )
        if wanted and (name not in known or its_extras):
            known.add(name)
            needed(asked, name, its_extras, known)
    return known


@cache
def pinned() -> dict[str, str]:
    """The versions of constraints.txt by the names of packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@cache
def files(package: str) -> dict[str, tuple[str, str]]:
    """The address and the digest of every file of the pinned version, by its name."""
    if package not in pinned():
        sys.exit(f"{package}: constraints.txt has no version of it")
    found = _FILE.findall(_read(f"https://pypi.org/simple/{package}/").decode())
    stem = package.replace("-", "[-_.]")
    ours = re.compile(rf"{stem}-{re.escape(pinned()[package])}(-|\.tar\.gz$|\.zip$)", re.IGNORECASE)
    return {name: (address, digest) for address, name, digest in found if ours.match(name)}


def needs(package: str) -> Iterable[str]:
    """What is installed says it; but PyTorch may be another build here, so PyPI is asked about that."""
    return published(package) if of_torch(package) else requires(package) or ()


def published(package: str) -> list[str]:
    """What the wheel for this machine says that it needs."""
    here = frozenset(sys_tags())
    for name, (address, digest) in files(package).items():
        if name.endswith(".whl") and not here.isdisjoint(parse_wheel_filename(name)[3]):
            return message_from_bytes(_metadata(address, digest)).get_all("Requires-Dist") or []
    sys.exit(f"{package} {pinned()[package]}: PyPI has no wheel for this machine")


def _metadata(address: str, digest: str) -> bytes:
    """PyPI has it beside most wheels; of others, the wheel itself is read."""
    try:
        return _read(f"{address}.metadata")
    except HTTPError:
        content = _read(address)
    if hashlib.sha256(content).hexdigest() != digest:
        sys.exit(f"{address}: this is not the file that PyPI lists")
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        return wheel.read(name)


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address) as page:
        content: bytes = page.read()
    return content


def locked(packages: Iterable[str]) -> str:
    """Every package with the digests of all its files."""
    lines = ["# Written by tools/lock.py; see docs/start/install.md."]
    for package in sorted(packages):
        digests = sorted(digest for _, digest in files(package).values())
        lines.append(
            " \\\n    ".join([f"{package}=={pinned()[package]}", *(f"--hash=sha256:{each}" for each in digests)])
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    packages = needed(needs)
    LOCK.write_text(locked(each for each in packages if not of_torch(each)))
    TORCH_LOCK.write_text(locked(filter(of_torch, packages)))


if __name__ == "__main__":
    main()
