"""What is released: one version everywhere, and a container file that copies what exists."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_container_copies_files_that_exist_and_runs_without_rights() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = [source for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for source in line.split()[:-1]]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not set(copied) & set(ignored)
    assert text.index("USER personae") < text.index('ENTRYPOINT ["personae"]')


def test_the_container_takes_nothing_without_a_digest() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    packages, ours = re.findall(r"pip install (.+)$", text, re.MULTILINE)
    assert {"--no-deps", "--require-hashes"} <= set(packages.split())
    assert re.findall(r"--requirement /src/(\S+)", packages) == ["requirements.lock", "requirements-torch.lock"]
    assert {"--no-deps", "--no-index", "--no-build-isolation"} <= set(ours.split())
