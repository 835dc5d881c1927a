"""Counter-based random numbers: every draw is a pure function of its key, whatever is drawn before or beside it.

Only integer arithmetic and correctly rounded float operations are used (no sine, no logarithm): their results do not
depend on where in a buffer an element lies, so that a number is the same bit for bit in every batch.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 32  # slots hashed at a time


def signed(word: int) -> int:
    """The low 64 bits as a two's complement number, which is what int64 tensors hold."""
    word %= 1 << 64
    return word - (1 << 64) if word >> 63 else word


GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 tensors (products wrap; the masks make the shifts logical)."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * MULTIPLIERS[0]
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * MULTIPLIERS[1]
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def word_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Stream:
    """One independent stream of draws for each element of the vectors among `words`."""

    def __init__(self, *words: int | str | Tensor) -> None:
        key = torch.zeros(1, dtype=torch.int64)
        for word in words:
            if isinstance(word, str):
                word = word_of(word)
            key = mix(key + signed(GOLDEN) + (word if isinstance(word, Tensor) else signed(word)))
        self.key = key
        self._slot = 0
        self._block: Tensor = key

    def bits(self) -> Tensor:
        column = self._slot % BLOCK
        if not column:
            slots = torch.tensor([signed(GOLDEN * slot) for slot in range(self._slot + 1, self._slot + 1 + BLOCK)])
            self._block = mix(slots.unsqueeze(1) + self.key)
        self._slot += 1
        return self._block[column]

    def uniform(self, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
        unit = ((self.bits() >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
        return low + (high - low) * unit

    def normal(self, mean: float | Tensor = 0.0, spread: float | Tensor = 1.0) -> Tensor:
        """Bell-shaped: the sum of three uniform numbers, so within three standard deviations (no monsters)."""
        bits = self.bits()
        third = (1 << 21) - 1
        total = (bits & third) + ((bits >> 21) & third) + ((bits >> 42) & third)
        return mean + spread * (total.double() * (2 / third) - 3)

    def chance(self, rate: float | Tensor) -> Tensor:
        return self.uniform() < rate

    def sometimes(self, rate: float | Tensor, low: float, high: float) -> Tensor:
        """Uniform in low..high with the given rate, otherwise zero."""
        return self.chance(rate).double() * self.uniform(low, high)

    def choice(self, odds: Sequence[float | Tensor]) -> Tensor:
        """An index drawn with the given odds, which need not add up to one."""
        point = self.uniform() * sum(odds)
        index = torch.zeros_like(self.key)
        passed: float | Tensor = 0.0
        for weight in odds[:-1]:
            passed = passed + weight
            index = index + (point >= passed).long()
        return index

    def colour(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.stack([self.uniform(low, high) for _ in range(3)], -1)

    def direction(self) -> tuple[Tensor, Tensor]:
        """A point of the unit circle, all round, by way of the tangent of half the angle."""
        cosine, sine = rotation(self.uniform(-1.0, 1.0))
        sign = 1 - 2 * self.chance(0.5).double()
        return cosine * sign, sine * sign


def rotation(half_tangent: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle with this tangent of its half, in correctly rounded operations alone."""
    square = half_tangent * half_tangent
    return (1 - square) / (1 + square), 2 * half_tangent / (1 + square)
