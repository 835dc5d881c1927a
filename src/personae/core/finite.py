"""Whether all numbers are finite."""

from torch import Tensor


def all_finite(tensor: Tensor) -> bool:
    """Exact, and mostly in one fast pass: a sum is finite only if all its terms are, though large ones may overflow."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
