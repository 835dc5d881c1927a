"""Gaussian noise that nobody can subtract who does not have its key."""

import hashlib
import os
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Randomness = Literal["secret", "seed"]
BLOCK = 1 << 20  # numbers that are made at once
KEY = 32  # bytes


def new_key(randomness: Randomness, generator: torch.Generator) -> Tensor:
    """uint8 [KEY]: from the system's randomness, or from the run's seed, to have the same bits again."""
    if randomness == "secret":
        return torch.frombuffer(bytearray(os.urandom(KEY)), dtype=torch.uint8)
    return torch.randint(256, (KEY,), dtype=torch.uint8, generator=generator)


def gaussian(key: Tensor, purpose: str, size: int) -> Tensor:
    """float64 [size], independent and of variance one: the same for the same key and purpose, on every machine.

    SHAKE-256 makes uniform numbers of them, of 53 bits each, and the transform of Box and Muller Gaussian ones. So who
    has seen some of the noise cannot tell the rest, which is not so with a generator for simulations.
    """
    return torch.cat([_block(key, f"{purpose}/{begin}", min(BLOCK, size - begin)) for begin in range(0, size, BLOCK)])


def chance(key: Tensor, purpose: str) -> float:
    """A uniform number in (0, 1], likewise."""
    return float(_uniform(key, purpose, 1)[0])


def _uniform(key: Tensor, purpose: str, size: int) -> NDArray[np.floating[Any]]:
    stream = hashlib.shake_256(key.cpu().numpy().tobytes() + purpose.encode()).digest(8 * size)
    return ((np.frombuffer(stream, dtype="<u8") >> 11) + 1) * 2.0**-53


def _block(key: Tensor, purpose: str, size: int) -> Tensor:
    half = (size + 1) // 2
    uniform = _uniform(key, purpose, 2 * half)
    length, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return torch.from_numpy(np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:size])
