"""What an update counts in an average."""

from typing import Literal

Weighting = Literal["samples", "uniform"]


def weight_of(weighting: Weighting, samples: int) -> float:
    """A client's weight: its number of samples, or one."""
    return float(samples) if weighting == "samples" else 1.0
