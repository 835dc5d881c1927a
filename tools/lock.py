"""Write requirements.lock: what personae[flower,onnx,parquet] needs in production, with the digests that PyPI has.

`python tools/lock.py`, in the environment of development, where PyPI can be reached. Versions are those of
constraints.txt. PyTorch is left out: every platform has builds of its own, from indices of its own.
"""

import re
import sys
import urllib.request
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
EXTRAS = ("flower", "onnx", "parquet")
LEFT_OUT = frozenset({"torch"})
_FILE = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')


def needed(package: str = "personae", extras: tuple[str, ...] = EXTRAS, known: set[str] | None = None) -> set[str]:
    """The packages that an installation takes, all the way down, but for what is left out and what that takes alone."""
    known = set() if known is None else known
    for line in requires(package) or ():
        requirement = Requirement(line)
        name, asked = canonicalize_name(requirement.name), tuple(requirement.extras)
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": each}) for each in ("", *extras)
        )
        if wanted and name not in LEFT_OUT and (name not in known or asked):
            known.add(name)
            needed(name, asked, known)
    return known


def pinned() -> dict[str, str]:
    """The versions of constraints.txt by the names of packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def digests(package: str, version: str) -> list[str]:
    """Of all files of this version."""
    with urllib.request.urlopen(f"https://pypi.org/simple/{package}/") as page:
        files = _FILE.findall(page.read().decode())
    stem = re.compile(rf"{package.replace('-', '[-_.]')}-{re.escape(version)}(-|\.tar\.gz$|\.zip$)", re.IGNORECASE)
    return sorted(digest for name, digest in files if stem.match(name))


def main() -> None:
    versions, lines = pinned(), ["# Written by tools/lock.py; see docs/start/install.md."]
    for package in sorted(needed()):
        found = digests(package, versions[package])
        if not found:
            sys.exit(f"{package} {versions[package]}: PyPI has no such files")
        lines.append(
            " \\\n    ".join([f"{package}=={versions[package]}", *(f"--hash=sha256:{each}" for each in found)])
        )
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
