"""Arithmetic that is what it says."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_float32() -> Iterator[None]:
    """Products of float32 matrices are really computed in float32, even where the user allows faster formats."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
