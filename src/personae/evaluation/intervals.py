"""Intervals from what a figure is in resamples. They are made and read without PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from personae.errors import ConfigError

LEVEL = 0.95  # of intervals that nobody has chosen another one for


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


def interval(rates: Sequence[float] | npt.NDArray[np.float64], level: float) -> Interval:
    """From one quantile to another: the lowest values with at least that share at or below them."""
    if not 0 < level < 1:
        raise ConfigError(f"an interval at level {level}: take a level between 0 and 1")
    tails = round((1 - level) / 2, 12), round((1 + level) / 2, 12)  # (1 - 0.95) / 2 is a hair above 0.025
    return Interval(*np.quantile(rates, tails, method="inverted_cdf").tolist())
