"""The locks of production: every package that an installation takes, in the pinned version, with digests."""

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, requires
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


def entries(path: Path) -> dict[str, str]:
    """The versions by names. Nothing is without a digest."""
    comment, _, rest = path.read_text().partition("\n")
    assert comment.startswith("#")
    assert "".join(entry.group() for entry in ENTRY.finditer(rest)) == rest
    return {name: version for name, version, _ in ENTRY.findall(rest)}


def installed(package: str) -> list[str]:
    """What a package needs. Development does without OpenCV, which needs NumPy alone."""
    try:
        return requires(package) or []
    except PackageNotFoundError:
        assert package == "opencv-python-headless"
        return ["numpy"]


def test_the_lock_covers_what_an_installation_takes(lock: ModuleType) -> None:
    found = entries(lock.LOCK)
    assert found.keys() == {name for name in lock.needed(installed) if not lock.of_torch(name)}
    assert found == {name: version for name, version in lock.pinned().items() if name in found}
    assert {"flwr", "dp-accounting", "mtcnn", "pillow-heif", "sympy", "setuptools"} <= found.keys()


def test_pytorch_has_a_lock_of_its_own_with_what_only_its_builds_take(lock: ModuleType) -> None:
    found = entries(lock.TORCH_LOCK)
    assert found == {name: version for name, version in lock.pinned().items() if lock.of_torch(name)}
    assert {"torch", "triton", "nvidia-cublas"} <= found.keys()


def test_packages_that_packages_need_are_found(lock: ModuleType) -> None:
    tree = {
        "personae": ["torch>=2", "Web_Kit[fast]>=1", "only-docs; extra == 'docs'", "wire; extra == 'flower'"],
        "web-kit": ["loop; extra == 'fast'", "slow; extra == 'slow'"],
        "loop": ["web-kit"],
    }
    assert lock.needed(lambda package: tree.get(package, [])) == {"torch", "web-kit", "loop", "wire", "setuptools"}
