"""The lock of production: every package that an installation takes, in the pinned version, with digests."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


@pytest.fixture
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_covers_what_an_installation_takes(lock: ModuleType) -> None:
    comment, _, entries = (ROOT / "requirements.lock").read_text().partition("\n")
    assert comment.startswith("#")
    found = {name: version for name, version, _ in ENTRY.findall(entries)}
    assert "".join(entry.group() for entry in ENTRY.finditer(entries)) == entries  # nothing is without a digest
    assert found.keys() == lock.needed()
    assert found == {name: version for name, version in lock.pinned().items() if name in found}
    assert "flwr" in found
    assert "torch" not in found


def test_packages_that_packages_need_are_found(lock: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {
        "personae": ["torch>=2", "Web_Kit[fast]>=1", "only-docs; extra == 'docs'", "wire; extra == 'flower'"],
        "web-kit": ["loop; extra == 'fast'", "slow; extra == 'slow'"],
        "loop": ["web-kit"],
    }
    monkeypatch.setattr(lock, "requires", tree.get)
    assert lock.needed() == {"web-kit", "loop", "wire"}
