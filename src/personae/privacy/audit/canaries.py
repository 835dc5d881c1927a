"""Canaries: an estimate of epsilon from one run, beside what an accountant promises."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr
from torch import Tensor

from personae.core.layer import layers_of
from personae.core.payload import ModelState
from personae.privacy.audit.attack import Evidence, PrivacyAttack, Unmeasurable
from personae.privacy.audit.finding import Finding

RESAMPLES = 200
MOST = 10_000.0  # an epsilon that says nothing any more


@runtime_checkable
class MadeUp(Protocol):
    """A layer whose made-up updates have known directions."""

    count: int
    direction: Callable[[int, ModelState], Tensor]


@dataclass(frozen=True, kw_only=True)
class CanaryEstimate(PrivacyAttack):
    """How far the model went along random directions that were put into it, against directions that were not."""

    name: ClassVar[str] = "canaries"
    has: ClassVar[str] = "the model after the stage and the one before, and the updates of made-up clients"
    tries: ClassVar[str] = "to say whether a given update was among those of the stage"
    strength: ClassVar[str] = (
        "strong for the model alone (arXiv 2302.03098); an estimate and no proof, and not for somebody who sees every "
        "round"
    )
    figure: ClassVar[str] = "epsilon"

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        layer = next((each for each in layers_of(evidence.algorithm) if isinstance(each, MadeUp)), None)
        if layer is None or evidence.begin is None:
            raise Unmeasurable('no canaries were put into the stage; layers = [{ name = "canaries" }] does')
        size = evidence.model.layout.trainable_size
        way = evidence.model.flat[:size].double().cpu() - evidence.begin.flat[:size].double().cpu()
        way /= way.norm().clamp_min(1e-30)
        cosines = np.array([float(layer.direction(k, evidence.begin).double() @ way) for k in range(layer.count)])
        found = estimate(cosines, size, evidence.delta)
        random = np.random.default_rng(evidence.seed)
        drawn = sorted(estimate(random.choice(cosines, len(cosines)), size, evidence.delta) for _ in range(RESAMPLES))
        yield Finding(
            attack=self.name,
            stage=evidence.stage,
            target=f"model, delta {evidence.delta:g}",
            figure=self.figure,
            value=found,
            chance=0.0,
            low=drawn[int(0.025 * RESAMPLES)],
            high=drawn[int(0.975 * RESAMPLES) - 1],
            trials=layer.count,
            details={"mean cosine": float(cosines.mean()), "null deviation": 1 / math.sqrt(size)},
        )


def estimate(cosines: NDArray[np.float64], dimensions: int, delta: float) -> float:
    """The epsilon at which the cosines with canaries, and those with others, would be as hard to tell apart.

    Cosines with directions that were never put in are normal, with mean 0 and variance 1 / d. Those with canaries are
    taken for normal with another mean and the larger of both variances: few canaries do not tell a smaller one.
    """
    spread = max(1 / math.sqrt(dimensions), float(cosines.std(ddof=1)))
    return gaussian_epsilon(max(0.0, float(cosines.mean())) / spread, delta)


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The smallest epsilon for N(shift, 1) against N(0, 1) at delta (Balle and Wang)."""

    def missed(epsilon: float) -> float:
        first, second = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
        return float(ndtr(first)) - math.exp(min(700.0, epsilon + float(log_ndtr(second))))

    low, high = 0.0, 1.0
    if shift <= 0 or missed(low) <= delta:
        return low
    while missed(high) > delta and high < MOST:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > delta else (low, middle)
    return min(high, MOST)
