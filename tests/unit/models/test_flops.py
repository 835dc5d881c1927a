"""The operations that the benchmark counts, against a network counted by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest
from torch import nn

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def peak():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("peak", BENCHMARKS / "peak.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_by_hand(peak):
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),  # 4x5 places x 8 channels x 27 products
        nn.Conv2d(8, 8, 3, padding=1, groups=8),  # 4x5 x 8 x 9
        nn.Conv2d(8, 6, 1),  # 4x5 x 6 x 8
        nn.Flatten(),
        nn.Linear(120, 10),
    )
    forward = peak.forward_flops(network, 8, 10)
    assert list(forward.values()) == [2 * 20 * 8 * 27, 2 * 20 * 8 * 9, 2 * 20 * 6 * 8, 2 * 1200]
    assert peak.training_flops(forward) == 2 * (20 * 8 * 27 * 2 + 3 * (20 * 8 * 9 + 20 * 6 * 8 + 1200))
